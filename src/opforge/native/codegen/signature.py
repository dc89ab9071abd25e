"""An operator's functions and enums, as the header and its own file write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ...errors import BadOption
from ..ir.dtypes import DTYPES
from ..ir.interface import ChoiceParam, Op, ScalarParam, TensorParam
from .names import distinct, macro, packed, part

Kind = Literal["call", "outputs", "workspace"]
# Of each kind of function, how its name ends and what it takes last.
_KINDS: dict[Kind, tuple[str, list[str]]] = {
    "call": ("", ["void *stream"]),
    "outputs": ("_outputs", []),
    "workspace": ("_workspace", ["int64_t *bytes"]),
}
# The functions' own parameters, and the table that they use; their locals begin with of_.
_TAKEN = frozenset({"implementation", "stream", "bytes", "operation"})
# With the header's OPFORGE_API in front.
_WIDTH = 84


class CSignature:
    """`OpforgeStatus mylib_silu(const OpforgeTensor *x, OpforgeTensor *out, void *stream)`."""

    def __init__(self, library: str, op: Op) -> None:
        self.library, self.op = library, op
        self.function = f"{library}_{part(op.name)}"
        self.kinds: tuple[Kind, ...] = (
            ("call", "outputs", "workspace") if op.outputs else ("call", "workspace")
        )
        self.choices = [p for p in op.params if isinstance(p, ChoiceParam)]
        # A parameter with the name of a type would hide it from those after it.
        types = {self.enum(param) for param in self.choices}
        self.names = distinct([p.name for p in op.params] + list(op.outputs), _TAKEN | types)

    def enum(self, param: ChoiceParam) -> str:
        """`mylib_silu_activation`; of a Python Enum `mylib_Activation`."""
        if param.enum:
            return f"{self.library}_{part(param.enum)}"
        return f"{self.function}_{part(param.name)}"

    def member(self, param: ChoiceParam, label: str) -> str:
        """`MYLIB_SILU_ACTIVATION_RELU`, `MYLIB_ACTIVATION_RELU`."""
        if param.enum:
            return macro(self.library, param.enum, label)
        return macro(self.library, self.op.name, param.name, label)

    def declaration(self, kind: Kind, *, forced: bool = False) -> str:
        """With `forced`, the index of an implementation is the first parameter."""
        ending, last = _KINDS[kind]
        parameters = ["int implementation"] if forced else []
        for param in self.op.params:
            name = self.names[param.name]
            if isinstance(param, TensorParam):
                const = "" if param.written and kind == "call" else "const "
                parameters.append(f"{const}OpforgeTensor *{name}")
            elif isinstance(param, ScalarParam):
                parameters.append(f"{DTYPES[param.dtype].c} {name}")
            else:
                parameters.append(f"{self.enum(param)} {name}")
        const = "const " if kind == "workspace" else ""
        parameters += [f"{const}OpforgeTensor *{self.names[name]}" for name in self.op.outputs]
        opening = f"OpforgeStatus {self.function}{ending}{'_with' if forced else ''}("
        lines = packed([*parameters, *last], ")", _WIDTH - len(opening))
        return opening + f"\n{' ' * len(opening)}".join(lines)

    def implementations(self) -> str:
        return f"int {self.function}_implementations(const OpforgeImplementation **list)"

    def error(self, what: str, **more: str) -> BadOption:
        return BadOption(
            what, **more, op=self.op.torch_name or self.op.name, location=self.op.location
        )

    @property
    def endings(self) -> list[str]:
        """What the names of its functions have behind the operator's."""
        kinds = [_KINDS[kind][0] + more for kind in self.kinds for more in ("", "_with")]
        return [*kinds, "_implementations"]


def enums(signatures: Sequence[CSignature]) -> list[tuple[CSignature, ChoiceParam]]:
    """The enums of a library, each with an operator that takes it.

    One that several share has the most values that any of them takes.
    """
    found: dict[str, tuple[CSignature, ChoiceParam]] = {}
    for signature in signatures:
        for param in signature.choices:
            name = f"enum {param.enum}" if param.enum else f"{signature.op.name} {param.name}"
            _, known = found.setdefault(name, (signature, param))
            if len(known.labels) < len(param.labels):
                found[name] = signature, param
    return list(found.values())
