"""What C and C++ call an operator's functions and enums, and a refusal of names that clash."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from ...errors import BadOption
from ..ir.abi import ABI
from ..ir.dtypes import DTYPES
from ..ir.interface import ChoiceParam, Op, ScalarParam, TensorParam
from .text import aligned, distinct, identifier, kept, macro, part, runtime

Kind = Literal["call", "outputs", "workspace"]
# Of each kind of function, how its name ends and what it takes last.
_KINDS: dict[Kind, tuple[str, list[str]]] = {
    "call": ("", ["void *stream"]),
    "outputs": ("_outputs", []),
    "workspace": ("_workspace", ["int64_t *bytes"]),
}
# The functions' own parameters, and the table that they use; their locals begin with of_.
_TAKEN = frozenset({"implementation", "stream", "bytes", "operation"})
# What the library has of its own, behind its name in C and in its namespace in C++.
_OWN = (
    "load", "unload", "set_allocator", "last_error", "manifest", "abi_version", "abi_check",
    f"abi_{ABI}", "torch_deferred", "torch_allocator", "manifest_hash",
    "jax_handlers", "jax_host_memory", "jax_device_type",
)  # fmt: skip
_OWN_CPP = frozenset({"load", "unload", "set_allocator", "manifest"})
# With the header's OPFORGE_API in front.
_WIDTH = 84


class CSignature:
    """`OpforgeStatus mylib_silu(const OpforgeTensor *x, OpforgeTensor *out, void *stream)`."""

    def __init__(self, library: str, op: Op) -> None:
        self.library, self.op = library, op
        self.function = f"{library}_{part(op.name)}"
        # In the library's namespace.
        self.cpp_function = kept(op.name, _OWN_CPP)
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

    def cpp_enum(self, param: ChoiceParam) -> str:
        """`silu_activation`, `Activation`."""
        if param.enum:
            return kept(param.enum, _OWN_CPP | {"opforge", "std"})
        return identifier(f"{self.op.name}_{param.name}")

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
        return "\n".join(aligned(opening, [*parameters, *last], ")", _WIDTH))

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


def shared_names() -> list[str]:
    """What the files of the runtime share; C knows it with the library's name in front."""
    return sorted(set(re.findall(r"\bof_\w+(?=[(;\[])", runtime()["runtime.h"])))


def check_names(library: str, signatures: Sequence[CSignature]) -> None:
    """Refuses a library in which two things would share a name."""
    shared = shared_names()
    # The runtime's own are macros, too.
    own = [*(f"{library}_{name}" for name in (*_OWN, *shared)), *shared]
    in_c = dict.fromkeys(own, "the library's own")
    # There, `new` becomes `new_`, and an enum loses underscores at its end.
    in_cpp = dict.fromkeys(_OWN_CPP, "the library's own")

    def take(
        holders: dict[str, str],
        name: str,
        kind: str,
        signature: CSignature,
        param: ChoiceParam | None = None,
    ) -> None:
        if name in holders:
            language = " in C++" if holders is in_cpp else ""
            raise _clash(
                f"{kind} would be called {name}{language}", holders[name], signature, param
            )
        holders[name] = _whose(kind, signature)

    for signature in signatures:
        for ending in signature.endings:
            take(in_c, signature.function + ending, "a function", signature)
            take(in_cpp, signature.cpp_function + ending, "a function", signature)
    of_python = {}
    for signature, param in enums(signatures):
        take(in_c, signature.enum(param), "an enum", signature, param)
        for label in param.labels:
            take(in_c, signature.member(param, label), "an enum value", signature, param)
        take(in_cpp, signature.cpp_enum(param), "an enum", signature, param)
        of_python[param.enum] = signature, param
    for signature in signatures:
        for param in filter(lambda param: param.enum, signature.choices):
            other, known = of_python[param.enum]
            if known.labels[: len(param.labels)] != param.labels:
                what = f"another enum would be called {signature.enum(param)}"
                raise _clash(what, _whose("an enum", other), signature, param)


def _whose(kind: str, signature: CSignature) -> str:
    return f"{kind} of {signature.op.torch_name or signature.op.name} ({signature.op.location})"


def _clash(what: str, holder: str, signature: CSignature, param: ChoiceParam | None) -> BadOption:
    fix, more = "rename the operator, or give the library another name", {}
    if param is not None:
        fix = f"rename the Enum {param.enum}" if param.enum else "rename the parameter"
        more = {"parameter": param.name}
    return signature.error(what, found=holder, fix=fix, **more)
