"""The names that a library gives to C and C++, and a refusal where two would be the same."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import BadOption
from ..ir.abi import ABI
from ..ir.interface import ChoiceParam, Op
from ..ir.program import Library
from .cpp_header import OWN, enum_name, function_name
from .scope import refused
from .signature import CSignature, enums
from .templates import runtime

_FUNCTION, _ENUM, _VALUE = "function", "enum", "enum value"
_ENDINGS = (
    "", "_with", "_outputs", "_outputs_with", "_workspace", "_workspace_with", "_implementations",
)  # fmt: skip


def check_names(library: Library) -> None:
    """Refuses a library in which two things would share a name."""
    if not re.fullmatch(r"[A-Za-z]\w*", library.name, re.ASCII):
        raise BadOption(f"{library.name!r} cannot begin the names of C functions")
    _check_c(library)
    _check_cplusplus(library)


def shared_names() -> list[str]:
    """What the files of the runtime share; C knows it with the library's name in front."""
    return sorted(set(re.findall(r"\bof_\w+(?=[(;\[])", runtime()["runtime.h"])))


@dataclass(frozen=True)
class _Holder:
    """What has a name; no operator if the library itself has it."""

    kind: str
    op: Op | None = None

    @property
    def who(self) -> str:
        return "the library's own" if self.op is None else self.op.torch_name or self.op.name


class _Table:
    """Holds each name once."""

    def __init__(self, own: list[str]) -> None:
        self._holders = {name: _Holder(_FUNCTION) for name in own}

    def other(self, name: str, kind: str, op: Op) -> _Holder | None:
        """What has the name already; otherwise the operator has it from here on."""
        mine = _Holder(kind, op)
        held = self._holders.setdefault(name, mine)
        return None if held is mine else held


def _check_c(library: Library) -> None:
    own = [
        "load", "unload", "set_allocator", "last_error", "manifest", "abi_version", "abi_check",
        f"abi_{ABI}", "torch_deferred", "torch_allocator", "manifest_hash",
        "jax_handlers", "jax_host_memory", "jax_device_type",
    ]  # fmt: skip
    shared = shared_names()
    # The runtime's own are macros, too.
    table = _Table([*(f"{library.name}_{end}" for end in (*own, *shared)), *shared])
    for op in library.ops:
        signature = CSignature(library.name, op)
        for function in signature.functions:
            held = table.other(function, _FUNCTION, op)
            if held is not None:
                raise _clash(op, function, _FUNCTION, held)
    every = enums(library.ops)
    for op, param in every:
        signature = CSignature(library.name, op)
        named = [(signature.enum(param), _ENUM)]
        named += [(signature.member(param, label), _VALUE) for label in param.labels]
        for name, kind in named:
            held = table.other(name, kind, op)
            if held is not None:
                raise _clash(op, name, kind, held, param)
    of_python = {param.enum: (op, param) for op, param in every if param.enum}
    for op in library.ops:
        for param in _choices(op):
            other, known = of_python.get(param.enum, (op, param))
            if known.labels[: len(param.labels)] != param.labels:
                name = CSignature(library.name, op).enum(param)
                raise _clash(op, name, _ENUM, _Holder(_ENUM, other), param)


def _clash(
    op: Op, name: str, kind: str, held: _Holder, param: ChoiceParam | None = None
) -> BadOption:
    if kind == held.kind:
        whose = held.who if kind == _FUNCTION else f"that of {held.who}"
        what = f"two {kind}s would be called {name}: this one and {whose}"
    else:
        first, second = sorted((kind, held.kind), key=[_FUNCTION, _ENUM, _VALUE].index)
        article = "a" if first == _FUNCTION else "an"
        what = f"{article} {first} and an {second} would be called {name}"
    more = {}
    if held.op is not None and held.op is not op and held.op.location:
        more["found"] = f"{held.who} ({held.op.location})"
    if param is None:
        return refused(
            op, what, fix="rename the operator, or give the library another name", **more
        )
    fix = f"rename the Enum {param.enum}" if param.enum else "rename the parameter"
    return refused(op, what, fix=fix, parameter=param.name, **more)


def _check_cplusplus(library: Library) -> None:
    """There, `new` becomes `new_`, and an enum loses underscores at its end."""
    table = _Table(sorted(OWN))
    for op in library.ops:
        for ending in _ENDINGS:
            name = f"{function_name(op)}{ending}"
            held = table.other(name, _FUNCTION, op)
            if held is not None:
                raise _told(op, f"two functions would be called {name} in C++", held)
    for op, param in enums(library.ops):
        name = enum_name(op, param)
        held = table.other(name, _ENUM, op)
        if held is not None:
            first = "two enums" if held.kind == _ENUM else "a function and an enum"
            raise _told(op, f"{first} would be called {name} in C++", held, param)


def _told(op: Op, what: str, held: _Holder, param: ChoiceParam | None = None) -> BadOption:
    found = held.who + (f" ({held.op.location})" if held.op is not None else "")
    if param is None:
        return refused(op, what, found=found, fix="rename one of the operators")
    fix = f"rename the Enum {param.enum}" if param.enum else "rename the parameter"
    return refused(op, what, found=found, fix=fix, parameter=param.name)


def _choices(op: Op) -> list[ChoiceParam]:
    return [param for param in op.params if isinstance(param, ChoiceParam)]
