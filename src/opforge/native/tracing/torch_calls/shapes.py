"""torch calls that move elements: cat, repeat, gather and the like."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from ...._compat.tracing import Traced
from ...ir.expr import make
from ...symbolic.symint import term_of
from ..views import compact, is_compact, same
from .calls import CALLS, Call
from .pointwise import apply
from .values import Fetched, Load, Number, Position, Value

_ATEN = torch.ops.aten


def _cat(call: Call, tensors: Sequence[Traced], dim: int = 0) -> Any:
    # torch leaves such tensors out, whatever the others' rank is.
    tensors = [t for t in tensors if not (len(t.sizes) == 1 and same(t.sizes[0], 0))] or tensors[:1]
    dtype = functools.reduce(torch.promote_types, (t.dtype for t in tensors))
    dim %= len(tensors[0].sizes)
    sizes = list(tensors[0].sizes)
    for tensor in tensors[1:]:
        for d, size in enumerate(tensor.sizes):
            if d != dim and size != sizes[d]:
                raise RuntimeError(f"sizes {sizes[d]} and {size} of dimension {d} must be equal")
    sizes[dim] = sum(t.sizes[dim] for t in tensors)
    made = call.trace.allocate(sizes, dtype)
    start: Any = 0
    for tensor in tensors:
        length = tensor.sizes[dim]
        call.copy(call.trace.views.narrow(made, dim, start, length), tensor)
        start += length
    return made


def _stack(call: Call, tensors: Sequence[Traced], dim: int = 0) -> Any:
    rank = len(tensors[0].sizes)
    return _cat(call, [call.trace.views.unsqueeze(t, dim % (rank + 1)) for t in tensors], dim)


def _repeat(call: Call, x: Traced, repeats: Sequence[Any]) -> Any:
    """As a tensor of sizes (repeats[0], x.sizes[0], repeats[1], ...), which x is expanded to."""
    new = len(repeats) - len(x.sizes)
    sizes = [*[1] * new, *x.sizes]
    strides = [*[0] * new, *x.strides]
    made = call.trace.allocate([r * n for r, n in zip(repeats, sizes, strict=True)], x.dtype)
    apart = [one for pair in zip(repeats, sizes, strict=True) for one in pair]
    views = call.trace.views
    out = views.of(made, apart, compact(apart))
    source = views.of(x, apart, [one for stride in strides for one in (0, stride)])
    call.copy(out, source)
    return made


def _flip(call: Call, x: Traced, dims: Sequence[int]) -> Any:
    flipped = {d % len(x.sizes) for d in dims} if x.sizes else set()
    strides = [-s if d in flipped else s for d, s in enumerate(x.strides)]
    offset = x.offset + sum((x.sizes[d] - 1) * x.strides[d] for d in flipped)
    source = call.trace.views.of(x, x.sizes, strides, offset)
    return call.copy(_like(call, x), source)


def _roll(call: Call, x: Traced, shifts: Any, dims: Any = ()) -> Any:
    shifts = [shifts] if not isinstance(shifts, (list, tuple)) else shifts
    dims = [dims] if isinstance(dims, int) else dims
    if not dims:
        views = call.trace.views
        if not all(map(same, x.strides, compact(x.sizes))):
            x = call.copy(call.trace.allocate(x.sizes, x.dtype), x)
        flat = _roll(call, views.view(x, [math.prod(x.sizes)]), shifts, [0])
        return views.view(flat, list(x.sizes))
    for shift, dim in zip(shifts, dims, strict=True):
        x = _rolled(call, x, shift, dim % len(x.sizes))
    return x


def _rolled(call: Call, x: Traced, shift: Any, dim: int) -> Traced:
    views, size = call.trace.views, x.sizes[dim]
    made = call.trace.allocate(x.sizes, x.dtype)
    if size == 0:
        return made
    shift %= size
    call.copy(views.narrow(made, dim, 0, shift), views.narrow(x, dim, size - shift, shift))
    call.copy(views.narrow(made, dim, shift, size - shift), views.narrow(x, dim, 0, size - shift))
    return made


def _triangle(sign: str) -> Any:
    def make(call: Call, x: Traced, diagonal: Any = 0) -> Any:
        row, column = (Position(torch.int64, len(x.sizes) - n) for n in (2, 1))
        value = Load(x.dtype, x)
        kept = apply(f"{{0}} - {{1}} {sign} {{2}}", column, row, Number(torch.int64, diagonal),
                     dtype=torch.bool)  # fmt: skip
        zero = Number(x.dtype, 0)
        found = apply("tl.where({0}, {1}, {2})", kept, value, zero, dtype=x.dtype)
        return call.store(call.trace.allocate(x.sizes, x.dtype), found)

    return make


def _like(call: Call, x: Traced) -> Traced:
    return call.trace.allocate(x.sizes, x.dtype, strides=call.strides([x], x.sizes))


def _index_select(call: Call, x: Traced, dim: int, index: Traced) -> Any:
    if not x.sizes:
        # torch takes it for a tensor of one element, and gives one back.
        return call.trace.views.view(_gather(call, x, dim, index), [])
    index = call.trace.views.view(index, [math.prod(index.sizes)])
    return _taken(call, x, dim % len(x.sizes), index, "in_range")


def _taken(
    call: Call, x: Traced, dim: int, index: Traced, check: str, *, ordered: bool = False
) -> Traced:
    """Elements of x, with the dimensions of an index in place of one of x's own.

    They are dense in the order of these dimensions unless they are `ordered` as x and the index.
    """
    before, after = range(dim), range(dim + 1, len(x.sizes))
    wide = len(index.sizes)
    sizes = [*(x.sizes[d] for d in before), *index.sizes, *(x.sizes[d] for d in after)]
    strides = [*(x.strides[d] for d in before), *[0] * wide, *(x.strides[d] for d in after)]
    places = [*[0] * dim, *index.strides, *[0] * len(after)]
    views = call.trace.views
    at = Load(index.dtype, views.of(index, sizes, places))
    source = views.of(x, sizes, strides)
    value = Fetched(x.dtype, source, _int64(at), x.sizes[dim], x.strides[dim], check)
    dense = None
    if ordered and not (is_compact(x) and is_compact(index)):
        # In torch, the index has strides also in x's dimensions that are of size 1.
        lone = not index.sizes
        outer = 1 if lone else index.sizes[0] * index.strides[0]
        inner = 1 if lone else index.strides[-1]
        places = [
            *(_if_one(call, x.sizes[d], outer) for d in before),
            *index.strides,
            *(_if_one(call, x.sizes[d], inner) for d in after),
        ]
        dense = call.trace.dense_strides([source, views.of(index, sizes, places)], sizes)
    return call.store(call.trace.allocate(sizes, x.dtype, strides=dense), value)


def _if_one(call: Call, size: Any, stride: Any) -> Any:
    """A stride in a dimension of size 1, and 0 in a wider one."""
    symbols = call.trace.symbols
    is_one = symbols.algebra.compare("==", term_of(size), 1)
    return symbols.integer(make("where", is_one, term_of(stride), 0))


def _int64(at: Value) -> Value:
    return at if at.dtype is torch.int64 else apply("{0}.to(tl.int64)", at, dtype=torch.int64)


def _gather(call: Call, x: Traced, dim: int, index: Traced, *, sparse_grad: bool = False) -> Any:
    if not x.sizes:
        x = call.trace.views.view(x, [1])
        flat = call.trace.views.view(index, [math.prod(index.sizes)])
        return call.trace.views.view(_gather(call, x, 0, flat), list(index.sizes))
    dim %= len(x.sizes)
    for d, size in enumerate(index.sizes):
        if d != dim and size > x.sizes[d]:
            raise RuntimeError(f"size {size} of the index exceeds {x.sizes[d]}, in dimension {d}")
    strides = [0 if d == dim else s for d, s in enumerate(x.strides)]
    source = call.trace.views.of(x, index.sizes, strides)
    at = Load(index.dtype, index)
    value = Fetched(x.dtype, source, at, x.sizes[dim], x.strides[dim], "in_range")
    return call.store(call.trace.allocate(index.sizes, x.dtype), value)


def _index(call: Call, x: Traced, indices: Sequence[Any]) -> Any:
    """`x[:, i]`, with one tensor of positions."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if len(given) != 1 or given[0][1].dtype in {torch.bool, torch.uint8}:
        return NotImplemented
    dim, index = given[0]
    # Fakes take every index for a compact one.
    call.has_own_layout = not is_compact(index)
    return _taken(call, x, dim, index, "from_end", ordered=True)


CALLS.update({
    _ATEN.cat.default: _cat,
    _ATEN.stack.default: _stack,
    _ATEN.repeat.default: _repeat,
    _ATEN.flip.default: _flip,
    _ATEN.roll.default: _roll,
    _ATEN.tril.default: _triangle("<="),
    _ATEN.triu.default: _triangle(">="),
    _ATEN.index_select.default: _index_select,
    _ATEN.gather.default: _gather,
    _ATEN.embedding.default: lambda call, weight, at, *_, **__: _taken(
        call, weight, 0, at, "in_range"
    ),
    _ATEN.index.Tensor: _index,
})  # fmt: skip
