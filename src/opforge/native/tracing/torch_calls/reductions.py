"""torch's reductions: sums, extremes, softmax and the like."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...._compat.tracing import Traced
from ..views import compact, is_one, same
from .calls import CALLS, Call
from .pointwise import BOOLS, FLOATS, INTEGERS, apply, refuse_kind
from .values import Load, Number, Scanned, Total, Value, cast

_ATEN = torch.ops.aten
# Fewer results of more elements leave most of a GPU idle, so several programs share one. A program
# takes a row where that lies densely, otherwise 64 neighbours. The last is how long a part is.
_BY_ROW, _BY_COLUMN = (256, 65536, 16384), (16384, 1024, 256)
_MOST_PARTS = 1024
# Rows of so many elements are kept in registers.
_FITS = (1024, 4096, 16384)


class Dims:
    """A tensor, with the dimensions that a reduction removes behind those that stay."""

    def __init__(self, call: Call, x: Traced, dims: Any, keepdim: bool) -> None:
        self.call, self.x = call, x
        rank = len(x.sizes)
        given = [dims] if isinstance(dims, int) else dims
        # A tensor without dimensions takes 0 and -1 for its own.
        self.gone = sorted({d % rank for d in given}) if given and rank else list(range(rank))
        self.kept = [d for d in range(rank) if d not in self.gone]
        self.view = call.trace.views.permute(x, [*self.kept, *self.gone])
        self.sizes = tuple(x.sizes[d] for d in self.gone)
        self.shape = [x.sizes[d] for d in self.kept]
        self.full = [1 if d in self.gone else x.sizes[d] for d in range(rank)]
        self.keepdim = keepdim

    @property
    def count(self) -> Any:
        return math.prod(self.sizes)

    @property
    def is_dense(self) -> bool:
        """Whether neighbours in memory belong to one result."""
        return not self.gone or same(self.x.strides[self.gone[-1]], 1)

    def result(self, dtype: torch.dtype) -> tuple[Traced, Traced]:
        """A new tensor as torch returns it, and with the dimensions that stay."""
        sizes = self.full if self.keepdim else self.shape
        made = self.call.trace.allocate(sizes, dtype)
        views = self.call.trace.views
        return made, views.of(made, self.shape, compact(self.shape))

    def refuse_nothing(self, name: str) -> None:
        """Raise as torch does: there is no extreme of nothing."""
        for size in self.sizes:
            if size == 0:
                raise IndexError(f"{name}(): a dimension without elements has no extreme")


def _simple(kind: str, finish: Callable[[Value, Dims], Value] | None = None) -> Any:
    """A reduction to one result of each row."""

    def make(
        call: Call, x: Traced, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
    ) -> Any:
        rows = Dims(call, x, dims, keepdim)
        if kind in {"amax", "amin"}:
            rows.refuse_nothing(kind)
        wanted = dtype or _result_dtype(kind, x.dtype)
        refuse_kind(call.made.name, wanted, FLOATS, INTEGERS, BOOLS)
        value = cast(cast(Load(x.dtype, rows.view), wanted), _wide(wanted))
        total = Total(value.dtype)
        # Bits have no sum: Triton's is a parity.
        of_bits = {"sum": "any", "prod": "all"} if wanted is torch.bool else {}
        result = finish(total, rows) if finish else total
        return _reduce(call, of_bits.get(kind, kind), value, rows, [total], [(wanted, result)])

    return make


def _reduce(
    call: Call,
    kind: str,
    value: Value,
    rows: Dims,
    totals: Sequence[Total],
    results: Sequence[tuple[torch.dtype, Value]],
) -> Any:
    """New tensors for the results, which have a dtype and are made of the totals."""
    tensors = [rows.result(dtype) for dtype, _ in results]
    outs = tuple(out for _, out in tensors)
    found = tuple(cast(result, dtype) for dtype, result in results)
    by_row = rows.is_dense or not rows.shape
    few, many, part = _BY_ROW if by_row else _BY_COLUMN
    if rows.count > many and math.prod(rows.shape) < few:
        parts = torch.sym_min((rows.count + (part - 1)) // part, _MOST_PARTS)
        partial = [_partial(call, rows.shape, parts, t.dtype, by_row=by_row) for t in totals]
        first, *rest = (Load(tensor.dtype, tensor) for tensor in partial)
        call.reduce(kind, tuple(partial), value, tuple(totals), rows.sizes, parts=parts)
        call.reduce(kind, outs, first, found, (parts,), rest=tuple(rest))
    else:
        call.reduce(kind, outs, value, found, rows.sizes)
    return tensors[0][0] if len(tensors) == 1 else tuple(made for made, _ in tensors)


def _partial(
    call: Call, shape: Sequence[Any], parts: Any, dtype: torch.dtype, *, by_row: bool
) -> Traced:
    """What each part finds, with the parts last; neighbours in memory are as in the elements."""
    if by_row:
        return call.trace.allocate([*shape, parts], dtype)
    made = call.trace.allocate([parts, *shape], dtype)
    return call.trace.views.permute(made, [*range(1, len(shape) + 1), 0])


def _result_dtype(kind: str, dtype: torch.dtype) -> torch.dtype:
    if kind in {"any", "all"}:
        return torch.uint8 if dtype is torch.uint8 else torch.bool
    summed = kind in {"sum", "prod"} and not dtype.is_floating_point
    return torch.int64 if summed else dtype


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in {torch.float16, torch.bfloat16} else dtype


def _mean(total: Value, rows: Dims) -> Value:
    return apply("divide({0}, {1})", total, Number(total.dtype, rows.count))


def _truth(kind: str) -> Any:
    """`any` and `all`, of elements that are not 0."""

    def make(call: Call, x: Traced, dims: Any = None, keepdim: bool = False) -> Any:
        refuse_kind(call.made.name, x.dtype, FLOATS, INTEGERS, BOOLS)
        rows = Dims(call, x, dims, keepdim)
        value, total = cast(Load(x.dtype, rows.view), torch.bool), Total(torch.bool)
        result = (_result_dtype(kind, x.dtype), total)
        return _reduce(call, kind, value, rows, [total], [result])

    return make


def _extreme(kind: str, *, is_place: bool = False) -> Any:
    """`max` and `min` along a dimension: the extreme, and where it is; or only its place."""
    kinds = (FLOATS, INTEGERS) if is_place else (FLOATS, INTEGERS, BOOLS)

    def make(call: Call, x: Traced, dim: Any = None, keepdim: bool = False) -> Any:
        refuse_kind(call.made.name, x.dtype, *kinds)
        rows = Dims(call, x, dim, keepdim)
        rows.refuse_nothing(kind)
        value = cast(Load(x.dtype, rows.view), _wide(x.dtype))
        most, place = Total(value.dtype), Total(torch.int64, 1)
        results = [(x.dtype, most), (torch.int64, place)]
        return _reduce(call, kind, value, rows, [most, place], results[is_place:])

    return make


def _logsumexp(call: Call, x: Traced, dims: Any, keepdim: bool = False) -> Any:
    dtype = x.dtype if x.dtype.is_floating_point else torch.float32
    refuse_kind(call.made.name, dtype, FLOATS)
    rows = Dims(call, x, dims, keepdim)
    value = cast(Load(x.dtype, rows.view), _wide(dtype))
    most, total = Total(value.dtype), Total(value.dtype, 1)
    # The logarithm of nothing is -inf, of an infinite sum inf.
    result = apply("tl.where(is_infinite({0}), {0}, log({1}) + {0})", most, total)
    return _reduce(call, "logsumexp", value, rows, [most, total], [(dtype, result)])


# Where all elements are -inf, or one is inf, torch's total is NaN.
_TOTAL = 'tl.where(is_infinite({1}), float("nan"), {2})'


def _softmax(text: str, alone: str) -> Any:
    """`alone` is for an element that is the only one, which may be infinite."""

    def make(call: Call, x: Traced, dim: int, half_to_float: bool) -> Any:
        dtype = torch.float32 if half_to_float else x.dtype
        refuse_kind(call.made.name, dtype, FLOATS)
        made = call.trace.allocate(x.sizes, dtype)
        if not x.sizes or is_one(x.sizes[dim]):
            value = cast(Load(x.dtype, x), _wide(dtype))
            return call.store(made, cast(apply(alone, value), dtype))
        rows = Dims(call, x, dim, keepdim=True)
        out = call.trace.views.permute(made, [*rows.kept, *rows.gone])
        value = cast(Load(x.dtype, rows.view), _wide(dtype))
        most, total = Total(value.dtype), Total(value.dtype, 1)
        result = cast(apply(text, value, most, total), dtype)
        fits = next((n for n in _FITS if rows.count <= n), 0)
        call.reduce("logsumexp", (), value, (), rows.sizes, fits=fits, spread=((out, result),))
        return made

    return make


def _moments(pick: Sequence[str]) -> Any:
    """`var_mean`, `var` and `std`."""

    def make(
        call: Call, x: Traced, dims: Any = None, *, correction: Any = None, keepdim: bool = False
    ) -> Any:
        refuse_kind(call.made.name, x.dtype, FLOATS)
        rows = Dims(call, x, dims, keepdim)
        value = cast(Load(x.dtype, rows.view), _wide(x.dtype))
        correction = 1 if correction is None else correction
        mean, squares, count = (Total(value.dtype, number) for number in range(3))
        less = apply("largest({0} - {1}, {2})", count, Number(value.dtype, correction),
                     Number(value.dtype, 0))  # fmt: skip
        variance = apply("divide({0}, {1})", squares, less)
        empty = apply("tl.where({0} > 0, {1}, {2})", count, mean, Number(value.dtype, math.nan))
        found = {"mean": empty, "var": variance, "std": apply("root({0})", variance)}
        results = [(x.dtype, found[name]) for name in pick]
        return _reduce(call, "moments", value, rows, [mean, squares, count], results)

    return make


def _cumsum(call: Call, x: Traced, dim: int, *, dtype: Any = None) -> Any:
    wanted = dtype or _result_dtype("sum", x.dtype)
    refuse_kind(call.made.name, wanted, FLOATS, INTEGERS)
    made = call.trace.allocate(x.sizes, wanted)
    if not x.sizes or is_one(x.sizes[dim]):
        return call.copy(made, x)
    rank = len(x.sizes)
    order = [d for d in range(rank) if d != dim % rank] + [dim % rank]
    view, out = (call.trace.views.permute(t, order) for t in (x, made))
    value = cast(cast(Load(x.dtype, view), wanted), _wide(wanted))
    call.trace.steps.append(Scanned(out, value, (call.made,)))
    return made


def _norm(
    call: Call,
    x: Traced,
    order: Any = 2,
    dims: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Any:
    if not same(order, 2):
        return NotImplemented
    wanted = dtype or x.dtype
    rows = Dims(call, x, dims, keepdim)
    value = cast(Load(x.dtype, rows.view), _wide(wanted))
    square, total = apply("{0} * {0}", value), Total(value.dtype)
    return _reduce(call, "sum", square, rows, [total], [(wanted, apply("root({0})", total))])


CALLS.update({
    **dict.fromkeys((_ATEN.sum.default, _ATEN.sum.dim_IntList), _simple("sum")),
    **dict.fromkeys((_ATEN.prod.default, _ATEN.prod.dim_int), _simple("prod")),
    **dict.fromkeys((_ATEN.mean.default, _ATEN.mean.dim), _simple("sum", _mean)),
    **dict.fromkeys((_ATEN.amax.default, _ATEN.max.default), _simple("amax")),
    **dict.fromkeys((_ATEN.amin.default, _ATEN.min.default), _simple("amin")),
    _ATEN.max.dim: _extreme("argmax"),
    _ATEN.min.dim: _extreme("argmin"),
    _ATEN.argmax.default: _extreme("argmax", is_place=True),
    _ATEN.argmin.default: _extreme("argmin", is_place=True),
    **dict.fromkeys((_ATEN.any.default, _ATEN.any.dim, _ATEN.any.dims), _truth("any")),
    **dict.fromkeys((_ATEN.all.default, _ATEN.all.dim, _ATEN.all.dims), _truth("all")),
    _ATEN.logsumexp.default: _logsumexp,
    _ATEN._softmax.default: _softmax(  # noqa: SLF001
        f"divide(exp({{0}} - {{1}}), {_TOTAL})", "exp({0} - {0})"
    ),
    _ATEN._log_softmax.default: _softmax(  # noqa: SLF001
        f"{{0}} - {{1}} - log({_TOTAL})", "{0} - {0}"
    ),
    _ATEN.var_mean.correction: _moments(("var", "mean")),
    _ATEN.var.correction: _moments(("var",)),
    _ATEN.std.correction: _moments(("std",)),
    _ATEN.cumsum.default: _cumsum,
    _ATEN.linalg_vector_norm.default: _norm,
})  # fmt: skip
