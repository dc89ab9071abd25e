"""Puts torch calls that feed one another into groups, each of which becomes one kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ...._compat.tracing import Memory, Traced
from ..views import same
from .values import Called, Computed, Fetched, Group, Reduced, Scanned, leaves, loaded


def grouped(steps: Iterable[Any], kept: set[int]) -> list[Any]:
    """Steps with groups in place of `Computed` ones; `kept` are the ids of memory that is returned.

    A step joins the group before it that has its sizes, unless something between them touches the
    same memory.
    """
    found: list[Any] = []
    for step in steps:
        if not isinstance(step, Computed):
            found.append(step)
            continue
        home = _home(step, found)
        if home is None:
            found.append(Group([step]))
        else:
            home.steps.append(step)
    # From the end, because what nobody needs does not need its own operands either.
    used, live = set(kept), []
    for group in reversed(found):
        if isinstance(group, Group):
            group.stored = _stored(group, used)
            group.steps = _needed(group)
        elif isinstance(group, (Reduced, Scanned)) and not _is_used(group, used):
            continue
        used |= {id(memory) for memory in read(group)}
        live.append(group)
    return [one for one in reversed(live) if not isinstance(one, Group) or one.stored]


def _is_used(step: Any, used: set[int]) -> bool:
    memories: list[Any] = list(written(step))
    return any(id(memory) in used or not memory.allocated for memory in memories)


def _home(step: Computed, before: Sequence[Any]) -> Group | None:
    for other in reversed(before):
        if isinstance(other, Group) and _joins(step, other):
            return other
        if _meet(step, other):
            return None
    return None


def _joins(step: Computed, group: Group) -> bool:
    """Whether a step can be in one kernel with a group: each element depends on its like only."""
    if not _same_all(step.out.sizes, group.steps[0].out.sizes):
        return False
    own = [*_accesses(step)]
    for other in group.steps:
        for also, another in _accesses(other):
            for tensor, one in own:
                if tensor.memory is also.memory and (one or another):
                    fetched = {id(t) for t in (*_fetched(step), *_fetched(other))}
                    if {id(tensor), id(also)} & fetched or not is_same_view(tensor, also):
                        return False
    return True


def _accesses(step: Computed) -> Iterator[tuple[Traced, bool]]:
    """The tensors of a step, and whether it writes to each."""
    yield step.out, True
    for tensor in loaded(step.value):
        yield tensor, False


def _fetched(step: Computed) -> list[Traced]:
    return [one.tensor for one in leaves(step.value) if isinstance(one, Fetched)]


def _meet(step: Computed, other: Any) -> bool:
    """Whether two steps must stay in order."""
    own_reads, own_writes = {id(m) for m in read(step)}, {id(step.out.memory)}
    reads, writes = {id(m) for m in read(other)}, {id(m) for m in written(other)}
    return bool(own_writes & (reads | writes) or own_reads & writes)


def read(step: Any) -> Iterator[Memory]:
    """What a step may read."""
    if isinstance(step, Group):
        for one in step.steps:
            yield from read(one)
    elif isinstance(step, (Computed, Scanned)):
        yield from (t.memory for t in loaded(step.value))
    elif isinstance(step, Reduced):
        for value in (step.value, *step.rest, *(value for _, value in step.spread)):
            yield from (t.memory for t in loaded(value))
    else:
        yield from step.memories()


def written(step: Any) -> Iterator[Memory]:
    """What a step may write to."""
    if isinstance(step, Group):
        yield from (one.out.memory for one in step.steps)
    elif isinstance(step, (Called, Computed, Scanned)):
        yield step.out.memory
    elif isinstance(step, Reduced):
        yield from (out.memory for out in (*step.outs, *(out for out, _ in step.spread)))
    else:
        yield from step.memories()


def touched(step: Any) -> Iterator[Memory]:
    yield from read(step)
    yield from written(step)


def _stored(group: Group, used: set[int]) -> set[int]:
    """The steps, by id, whose results somebody reads from memory."""
    found: set[int] = set()
    overwritten: list[Traced] = []
    for step in reversed(group.steps):
        memory: Any = step.out.memory
        again = any(is_same_view(step.out, other) for other in overwritten)
        if (id(memory) in used or not memory.allocated) and not again:
            found.add(id(step))
        overwritten.append(step.out)
    return found


def _needed(group: Group) -> list[Computed]:
    """The steps that are stored, or that these need."""
    wanted: set[int] = set()
    kept: list[Computed] = []
    for step in reversed(group.steps):
        if id(step) in group.stored or id(step.out.memory) in wanted:
            kept.append(step)
            wanted |= {id(t.memory) for t in loaded(step.value)}
    return kept[::-1]


def is_same_view(a: Traced, b: Traced) -> bool:
    return (
        a.memory is b.memory
        and a.dtype is b.dtype
        and same(a.offset, b.offset)
        and _same_all(a.sizes, b.sizes)
        and _same_all(a.strides, b.strides)
    )


def _same_all(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(map(same, a, b))
