"""Plans a path's workspace: one allocation, in which buffers that are not alive together share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from .ir.cases import Allocate, Fill, Launch, Path, Pointer, Step
from .ir.expr import Term, make

# As allocators align.
_ALIGNMENT = 256
_NAME = "workspace"


def planned(path: Path) -> Path:
    """A path that allocates once, before its first step."""
    allocations = [step for step in path.steps if isinstance(step, Allocate)]
    if len(allocations) < 2:  # one has nothing to share with
        return path
    slots = _slots(path.steps)
    offsets: dict[str, Term] = {}
    total: Term = 0
    for buffers in slots:
        size = _rounded(buffers[0].bytes)
        for buffer in buffers[1:]:
            size = make("max", size, _rounded(buffer.bytes))
        offsets |= {buffer.buffer: total for buffer in buffers}
        total = size if total == 0 else make("+", total, size)
    moved = [_moved(step, offsets) for step in path.steps if not isinstance(step, Allocate)]
    return dataclasses.replace(path, steps=(Allocate(_NAME, total), *moved))


def _slots(steps: Sequence[Step]) -> list[list[Allocate]]:
    """Buffers that follow one another in the same memory."""
    last = {name: at for at, step in enumerate(steps) for name in _used(step)}
    slots: list[list[Allocate]] = []
    for at, step in enumerate(steps):
        if isinstance(step, Allocate):
            free = (slot for slot in slots if last.get(slot[-1].buffer, -1) < at)
            slot = next(free, None)
            if slot is None:
                slots.append([step])
            else:
                slot.append(step)
    return slots


def _used(step: Step) -> Iterator[str]:
    if isinstance(step, Fill):
        yield step.buffer
    elif isinstance(step, Launch):
        yield from (a.buffer for a in step.arguments if isinstance(a, Pointer))


def _rounded(size: Term) -> Term:
    return make("*", make("//", make("+", size, _ALIGNMENT - 1), _ALIGNMENT), _ALIGNMENT)


def _moved(step: Step, offsets: dict[str, Term]) -> Step:
    if isinstance(step, Fill) and step.buffer in offsets:
        offset = _sum(step.offset, offsets[step.buffer])
        return dataclasses.replace(step, buffer=_NAME, offset=offset)
    if isinstance(step, Launch):
        arguments = tuple(
            dataclasses.replace(a, buffer=_NAME, offset=_sum(a.offset, offsets[a.buffer]))
            if isinstance(a, Pointer) and a.buffer in offsets
            else a
            for a in step.arguments
        )
        return dataclasses.replace(step, arguments=arguments)
    return step


def _sum(a: Term, b: Term) -> Term:
    return b if a == 0 else a if b == 0 else make("+", a, b)
