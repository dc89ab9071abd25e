"""What a package contains: operators, opaque or seen through, and kernels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import _compat
from ..registry import registry


@dataclass(frozen=True)
class PackagedOp:
    """An operator that torch itself does not define.

    `module` and `file` say what to import before a package can call it; they are empty for an op
    that is not defined in Python. `local` is set for an op defined inside a function.
    """

    name: str
    seen_through: bool
    why: str
    location: str = ""
    module: str = ""
    file: str = ""
    local: bool = False


@dataclass(frozen=True)
class PackagedKernel:
    """A Triton kernel compiled into a package, and the op that launches it, if any."""

    name: str
    location: str
    op: str = ""


@dataclass(frozen=True)
class PackagedInput:
    """A tensor input of a package, as it was when the model was traced."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    device: str


def ops_of(program: Any, package: Path) -> tuple[PackagedOp, ...]:
    """The operators of the exported program, and those that the package still calls."""
    called = [name for name in _compat.aoti.operators_called_by(package) if _is_foreign(name)]
    exported = [name for name, _ in _compat.aoti.operator_nodes(program) if _is_foreign(name)]
    return tuple(
        _describe(name, seen_through=name not in called)
        for name in dict.fromkeys([*exported, *called])
    )


def kernels_of(program: Any, package: Path) -> tuple[PackagedKernel, ...]:
    """Kernels of transparent ops, and those that the model launches itself.

    Only kernels named in the package's source: an op may launch none for the traced arguments.
    """
    source = _compat.aoti.source_of(package)
    found: dict[PackagedKernel, None] = {}
    for name, node in _compat.aoti.operator_nodes(program):
        bare = _compat.aoti.bare_kernel(node)
        if bare is not None:
            names = _compat.kernels
            found[PackagedKernel(names.kernel_name(bare), names.kernel_location(bare))] = None
        entry = registry.find(name)
        info = entry.describe() if entry is not None else None
        if info is not None and info.mode == "triton_op":
            found.update({PackagedKernel(k.name, k.location, name): None for k in info.kernels})
    return tuple(kernel for kernel in found if not source or kernel.name in source)


def needed_at_run_time(ops: tuple[PackagedOp, ...]) -> tuple[PackagedOp, ...]:
    return tuple(op for op in ops if not op.seen_through)


def _is_foreign(name: str) -> bool:
    return name.partition("::")[0] not in _compat.operators.BUILT_IN


def _describe(name: str, *, seen_through: bool) -> PackagedOp:
    entry = registry.find(name)
    if entry is not None:
        fn, why = entry.fn, entry.describe().reason
    else:
        fn = _compat.operators.body_of(_compat.operators.definition(name))
        why = "defined with torch.library"
    if fn is None:
        return PackagedOp(name, seen_through, "defined by neither opforge nor torch.library")
    code = fn.__code__
    return PackagedOp(
        name,
        seen_through,
        why,
        location=f"{code.co_filename}:{code.co_firstlineno}",
        module=fn.__module__,
        file=code.co_filename,
        local="<locals>" in fn.__qualname__,
    )
