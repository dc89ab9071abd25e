"""An operator's functions and enums, as the header and its own file write them."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.dtypes import DTYPES
from ..ir.interface import ChoiceParam, Op, ScalarParam, TensorParam
from .names import distinct, macro, packed, part

# The functions' own parameters, and the table that they use; their locals begin with of_.
_TAKEN = frozenset({"implementation", "stream", "bytes", "operation"})
# With the header's OPFORGE_API in front.
_WIDTH = 84


def enums(ops: Sequence[Op]) -> list[tuple[Op, ChoiceParam]]:
    """The enums of a library, each with an operator that takes it.

    One that several share has the most values that any of them takes.
    """
    found: dict[tuple[str, ...], tuple[Op, ChoiceParam]] = {}
    for op in ops:
        for param in op.params:
            if isinstance(param, ChoiceParam):
                key = (param.enum,) if param.enum else (op.name, param.name)
                held = found.setdefault(key, (op, param))
                if len(held[1].labels) < len(param.labels):
                    found[key] = (op, param)
    return list(found.values())


class CSignature:
    """`OpforgeStatus mylib_silu(const OpforgeTensor *x, OpforgeTensor *out, void *stream)`."""

    def __init__(self, library: str, op: Op) -> None:
        self._library = library
        self._op = op
        self.function = f"{library}_{part(op.name)}"
        # A parameter with the name of a type would hide it from those after it.
        types = {self.enum(p) for p in op.params if isinstance(p, ChoiceParam)}
        self.names = distinct([p.name for p in op.params] + list(op.outputs), _TAKEN | types)

    def enum(self, param: ChoiceParam) -> str:
        """`mylib_silu_activation`; of a Python Enum `mylib_Activation`."""
        if param.enum:
            return f"{self._library}_{part(param.enum)}"
        return f"{self.function}_{part(param.name)}"

    def member(self, param: ChoiceParam, label: str) -> str:
        """`MYLIB_SILU_ACTIVATION_RELU`, `MYLIB_ACTIVATION_RELU`."""
        if param.enum:
            return macro(self._library, param.enum, label)
        return macro(self._library, self._op.name, param.name, label)

    def call(self, *, forced: bool = False) -> str:
        return self._write("", [*self._parameters(), *self._given(), "void *stream"], forced=forced)

    def outputs(self, *, forced: bool = False) -> str:
        parameters = [*self._parameters(only_read=True), *self._given()]
        return self._write("_outputs", parameters, forced=forced)

    def workspace(self, *, forced: bool = False) -> str:
        given = [f"const {output}" for output in self._given()]
        parameters = [*self._parameters(only_read=True), *given, "int64_t *bytes"]
        return self._write("_workspace", parameters, forced=forced)

    def implementations(self) -> str:
        return f"int {self.function}_implementations(const OpforgeImplementation **list)"

    @property
    def functions(self) -> list[str]:
        """The names of all its functions."""
        endings = ["", "_with", "_workspace", "_workspace_with", "_implementations"]
        endings += ["_outputs", "_outputs_with"] if self._op.outputs else []
        return [self.function + ending for ending in endings]

    def _given(self) -> list[str]:
        return [f"OpforgeTensor *{self.names[name]}" for name in self._op.outputs]

    def _parameters(self, *, only_read: bool = False) -> list[str]:
        written = []
        for param in self._op.params:
            name = self.names[param.name]
            if isinstance(param, TensorParam):
                const = "" if param.written and not only_read else "const "
                written.append(f"{const}OpforgeTensor *{name}")
            elif isinstance(param, ScalarParam):
                written.append(f"{DTYPES[param.dtype].c} {name}")
            else:
                written.append(f"{self.enum(param)} {name}")
        return written

    def _write(self, ending: str, parameters: list[str], *, forced: bool) -> str:
        """With `forced`, the index of an implementation is the first parameter."""
        if forced:
            ending, parameters = f"{ending}_with", ["int implementation", *parameters]
        opening = f"OpforgeStatus {self.function}{ending}("
        lines = packed(parameters, ")", _WIDTH - len(opening))
        return opening + f"\n{' ' * len(opening)}".join(lines)
