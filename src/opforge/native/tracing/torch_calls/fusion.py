"""Puts torch calls that feed one another into groups, each of which becomes one kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ...._compat.tracing import Memory, Traced
from ..views import is_one, is_same_view, same, same_all
from .values import (
    Applied,
    Called,
    Computed,
    Fetched,
    Group,
    Load,
    Number,
    Position,
    Reduced,
    Scanned,
    Value,
    leaves,
    loaded,
)


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
    if not same_all(step.out.sizes, group.steps[0].out.sizes):
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


# An element that is needed in several places is computed in each, so only short values are.
_MOST_REPEATED = 12


def inlined(steps: Sequence[Any], kept: set[int]) -> list[Any]:
    """The steps, with values in place of what only one call reads.

    (x + bias).t().contiguous()  ->  one kernel, which reads x and bias as the copy needs them
    """
    found = list(steps)
    uses = [_used(step) for step in found]
    for at, step in enumerate(found):
        if isinstance(step, (Computed, Reduced, Scanned)):
            found[at] = _with_values(found, uses, at, kept)
            uses[at] = _used(found[at])
        if isinstance(step, Computed):
            _finish_reduction(found, uses, at, kept)
            uses[at] = _used(found[at])
    return found


# By step, the memory that it reads or writes, by id.
_Uses = list[set[int]]


def _used(step: Any) -> set[int]:
    return {id(memory) for memory in touched(step)}


def _finish_reduction(steps: list[Any], uses: _Uses, at: int, kept: set[int]) -> None:
    """Let a reduction compute what a call makes of its only result, and of numbers."""
    step = steps[at]
    parts = [v for v in leaves(step.value) if not isinstance(v, (Applied, Number))]
    loads = [v.tensor for v in parts if isinstance(v, Load)]
    if not loads or len(loads) < len(parts) or id(loads[0].memory) in kept:
        return
    first, *others = _users(loads[0].memory, uses)
    maker = steps[first]
    if not isinstance(maker, Reduced) or others != [at] or maker.spread or len(maker.outs) > 1:
        return
    if not same(maker.parts, 1) or _is_overwritten(maker, steps[first + 1 : at + 1]):
        return
    made = maker.outs[0]
    if not all(_is_squeezed(made, load) for load in loads) or not _fits(made, step.out):
        return
    result = _replace(step.value, lambda v: maker.results[0] if isinstance(v, Load) else None)
    calls = (*maker.calls, *step.calls)
    out = _squeezed_as(made, step.out)
    # At the later place, before which the memory of its result may be read.
    steps[at] = dataclasses.replace(maker, outs=(out,), results=(result,), calls=calls)


def _is_overwritten(maker: Any, between: Sequence[Any]) -> bool:
    """Whether something changes what a step reads."""
    reads = {id(m) for m in read(maker)}
    return any(id(m) in reads for step in between for m in written(step))


def _wide(x: Traced) -> list[int]:
    """The dimensions that are not of size 1."""
    return [d for d, size in enumerate(x.sizes) if not is_one(size)]


def _fits(a: Traced, b: Traced) -> bool:
    """Whether two tensors have the same sizes, apart from those of 1."""
    own, other = ([t.sizes[d] for d in _wide(t)] for t in (a, b))
    return len(own) == len(other) and all(map(same, own, other))


def _is_squeezed(a: Traced, b: Traced) -> bool:
    """Whether two tensors are the same elements, apart from dimensions of size 1."""
    strides = ([t.strides[d] for d in _wide(t)] for t in (a, b))
    alike = _fits(a, b) and all(map(same, *strides))
    return a.memory is b.memory and same(a.offset, b.offset) and a.dtype is b.dtype and alike


def _squeezed_as(like: Traced, x: Traced) -> Traced:
    """A tensor with the dimensions of another, which has the same but for those of size 1."""
    left = iter(_wide(x))
    strides = [0 if is_one(size) else x.strides[next(left)] for size in like.sizes]
    return Traced(x.memory, like.sizes, strides, x.offset, x.dtype)


def _users(memory: Any, uses: _Uses) -> list[int]:
    return [i for i, used in enumerate(uses) if id(memory) in used]


def _with_values(steps: Sequence[Any], uses: _Uses, at: int, kept: set[int]) -> Any:
    step = steps[at]
    taken: list[Computed] = []

    def change(one: Value) -> Value | None:
        if not isinstance(one, Load):
            return None
        maker = _maker(one.tensor, steps, uses, at, kept)
        if maker is None:
            return None
        dims = _dims(maker.out, one.tensor)
        if dims is None:
            return None
        repeated = any(d is None for d in dims)
        if repeated and sum(1 for _ in leaves(maker.value)) > _MOST_REPEATED:
            return None
        taken.append(maker)
        return _moved(maker.value, one.tensor, dims)

    changes: dict[int, Value] = {}
    value = _replace(step.value, change, changes)
    more: dict[str, Any] = {}
    if isinstance(step, Computed):
        more = {"is_small": step.is_small and all(maker.is_small for maker in taken)}
    if isinstance(step, Reduced):
        # Over the same elements, so their parts stay shared.
        spread = [(out, _replace(one, change, changes)) for out, one in step.spread]
        more = {"spread": tuple(spread)}
    calls = (*(call for maker in taken for call in maker.calls), *step.calls)
    return dataclasses.replace(step, value=value, calls=calls, **more)


def _maker(
    loaded: Traced, steps: Sequence[Any], uses: _Uses, at: int, kept: set[int]
) -> Computed | None:
    """The call that made what a step loads, if nothing else needs its result."""
    memory: Any = loaded.memory
    if not memory.allocated:
        return None
    users = _users(memory, uses)
    if id(memory) in kept or len(users) != 2 or users[1] != at:
        return None
    maker = steps[users[0]]
    if not isinstance(maker, Computed) or maker.out.memory is not memory:
        return None
    if any(isinstance(v, Fetched) for v in leaves(maker.value)):
        return None
    # The step itself counts: a kernel must not read elsewhere what its other programs write.
    return None if _is_overwritten(maker, steps[users[0] + 1 : at + 1]) else maker


def _dims(made: Traced, seen: Traced) -> list[int | None] | None:
    """Which dimension of a result each one of a view of it is, None for one that repeats.

    A result of strides (m, 1), seen with strides (1, m): [1, 0]
    """
    if not same(made.offset, seen.offset) or made.dtype is not seen.dtype:
        return None
    left = {d for d, size in enumerate(made.sizes) if not same(size, 1)}
    found: list[int | None] = []
    for size, stride in zip(seen.sizes, seen.strides, strict=True):
        if same(stride, 0) or same(size, 1):
            found.append(None)
            continue
        alike = [d for d in left if same(made.strides[d], stride) and same(made.sizes[d], size)]
        if len(alike) != 1:
            return None
        left.discard(alike[0])
        found.append(alike[0])
    return None if left else found


def _moved(value: Value, seen: Traced, dims: Sequence[int | None]) -> Value:
    """A value over the index space of a view of its result."""

    def move(one: Value) -> Value | None:
        if isinstance(one, Load):
            return Load(one.dtype, _view(one.tensor, seen, dims))
        if isinstance(one, Position):
            if one.dim in dims:
                return Position(one.dtype, dims.index(one.dim))
            return Number(one.dtype, 0)
        return None

    return _replace(value, move)


def _view(tensor: Traced, seen: Traced, dims: Sequence[int | None]) -> Traced:
    strides = [0 if d is None else tensor.strides[d] for d in dims]
    return Traced(tensor.memory, seen.sizes, strides, tensor.offset, tensor.dtype)


def _replace(
    value: Value, change: Callable[[Any], Value | None], known: dict[int, Value] | None = None
) -> Value:
    """A value with other leaves; parts that are shared stay shared."""
    made: dict[int, Value] = {} if known is None else known

    def new(one: Value) -> Value:
        if id(one) not in made:
            made[id(one)] = build(one)
        return made[id(one)]

    def build(one: Value) -> Value:
        if isinstance(one, Applied):
            args = tuple(map(new, one.args))
            same_args = all(a is b for a, b in zip(args, one.args, strict=True))
            return one if same_args else Applied(one.dtype, one.text, args)
        if isinstance(one, (Load, Position)):
            return change(one) or one
        return one

    return new(value)
