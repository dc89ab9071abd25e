"""Refuses writes to a parameter that `mutates_args` does not name: C callers pass it as const."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field

from ... import _compat
from ...arch import Arch
from ...errors import WrongResult, first_line
from ...registry import Entry
from ..ir.kernel_request import Request
from ..ir.places import told
from .launches import Pointed, TracedLaunch
from .recorder import Buffer, Filled


def refuse_fill(entry: Entry, filled: Filled) -> None:
    """Raise if `x.zero_()` or the like changes a parameter that only is read."""
    if filled.buffer.name in _only_read(entry, [filled.buffer]):
        raise _error(entry, filled.buffer.name, "an in-place operation")


def refuse_launch(entry: Entry, called: TracedLaunch, request: Request, arch: Arch) -> str:
    """Raise if a kernel writes to a parameter that only is read; a note if that cannot be told."""
    given = {n: v.memory for n, v in called.arguments.items() if isinstance(v, Pointed)}
    only_read = _only_read(entry, given.values())
    if not only_read:
        return ""
    kernel = f"kernel {request.name} ({request.location})"
    if called.writes is None:
        written, why = _written(_Keyed(request.key, arch, request))
    else:
        written, why = called.writes, ""
    if why:
        return told(
            lambda at: (
                f"{entry.name}: it cannot be told what kernel {request.name} "
                f"({at(request.location)}) writes ({why}); make sure that it does not write to "
                f"{', '.join(only_read)}"
            )
        )
    for name, memory in given.items():
        if name in written and memory.name in only_read and not memory.allocated:
            raise _error(entry, memory.name, kernel, f"launched at {called.location}")
    return ""


def _only_read(entry: Entry, memories: Iterable[Buffer]) -> list[str]:
    """The parameters among some memory, by name, that `mutates_args` does not name."""
    mutated = {argument.name for argument in entry.flat().mutated}
    names = dict.fromkeys(memory.name for memory in memories if not memory.allocated)
    return [name for name in names if name not in mutated]


def _error(entry: Entry, name: str, writer: str, found: str = "") -> WrongResult:
    flat = entry.flat()
    path = next((a.path for a in flat.arguments if a.name == name), name)
    declared = sorted({path, *(a.path for a in flat.mutated)})
    return WrongResult(
        f"{writer} writes to {path!r}, which mutates_args does not name",
        parameter=path,
        found=found or None,
        fix=f"mutates_args={declared}, or write to a tensor that the body allocates",
        op=entry.name,
        location=entry.location,
    )


@dataclass(frozen=True)
class _Keyed:
    """A request by its key, because constants need not be hashable."""

    key: str
    arch: Arch
    request: Request = field(compare=False)


@functools.lru_cache(maxsize=4096)
def _written(keyed: _Keyed) -> tuple[frozenset[str], str]:
    """The kernel's parameters that it writes to, or why that is not known."""
    request = keyed.request
    try:
        variant = _compat.compiling.Variant(
            request.fn,
            keyed.arch,
            dict(request.signature),
            dict(request.constants),
            dict(request.options),
        )
        written = _compat.pointer_writes.written_pointers(variant)
    except _compat.pointer_writes.UnknownWrites as error:
        return frozenset(), first_line(error)
    except Exception:  # noqa: BLE001  # the compiler raises of any kind, and says it when it compiles
        return frozenset(), ""
    return written, ""
