"""The names that a library gives to C and C++, and a refusal where two would be the same."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...errors import BadOption
from ..ir.abi import ABI
from ..ir.interface import ChoiceParam, Op
from .cpp_header import OWN, enum_name, function_name
from .signature import CSignature, enums
from .templates import runtime

_OWN_OF_C = (
    "load", "unload", "set_allocator", "last_error", "manifest", "abi_version", "abi_check",
    f"abi_{ABI}", "torch_deferred", "torch_allocator", "manifest_hash",
    "jax_handlers", "jax_host_memory", "jax_device_type",
)  # fmt: skip


def check_names(library: str, signatures: Sequence[CSignature]) -> None:
    """Refuses a library in which two things would share a name."""
    if not re.fullmatch(r"[A-Za-z]\w*", library, re.ASCII):
        raise BadOption(f"{library!r} cannot begin the names of C functions")
    shared = shared_names()
    # The runtime's own are macros, too.
    in_c = _Names([*(f"{library}_{end}" for end in (*_OWN_OF_C, *shared)), *shared])
    # There, `new` becomes `new_`, and an enum loses underscores at its end.
    in_cplusplus = _Names(sorted(OWN), " in C++")
    for signature in signatures:
        for ending in signature.endings:
            in_c.take(signature.function + ending, "function", signature)
            in_cplusplus.take(function_name(signature.op) + ending, "function", signature)
    every = enums(signatures)
    for signature, param in every:
        in_c.take(signature.enum(param), "enum", signature, param)
        for label in param.labels:
            in_c.take(signature.member(param, label), "enum value", signature, param)
        in_cplusplus.take(enum_name(signature.op, param), "enum", signature, param)
    of_python = {param.enum: (signature.op, param) for signature, param in every if param.enum}
    for signature in signatures:
        for param in signature.choices:
            other, known = of_python.get(param.enum, (signature.op, param))
            if known.labels[: len(param.labels)] != param.labels:
                enum = signature.enum(param)
                raise _clash(enum, "enum", signature, ("enum", other), param)


def shared_names() -> list[str]:
    """What the files of the runtime share; C knows it with the library's name in front."""
    return sorted(set(re.findall(r"\bof_\w+(?=[(;\[])", runtime()["runtime.h"])))


# What has a name, and whose it is; no operator if it is the library's own.
_Holder = tuple[str, Op | None]


class _Names:
    """Every name of a language, each once."""

    def __init__(self, own: Sequence[str], language: str = "") -> None:
        self._holders: dict[str, _Holder] = dict.fromkeys(own, ("function", None))
        self._language = language

    def take(
        self, name: str, kind: str, signature: CSignature, param: ChoiceParam | None = None
    ) -> None:
        if name in self._holders:
            raise _clash(name + self._language, kind, signature, self._holders[name], param)
        self._holders[name] = kind, signature.op


def _clash(
    name: str, kind: str, signature: CSignature, holder: _Holder, param: ChoiceParam | None
) -> BadOption:
    other_kind, other = holder
    both = f"two {kind}s" if kind == other_kind else f"{kind} and {other_kind}"
    found = "the library's own"
    if other is not None:
        found = f"{other_kind} of {other.torch_name or other.name} ({other.location})"
    fix, more = "rename the operator, or give the library another name", {}
    if param is not None:
        fix = f"rename the Enum {param.enum}" if param.enum else "rename the parameter"
        more = {"parameter": param.name}
    return signature.error(f"{both} would be called {name}", found=found, fix=fix, **more)
