"""torch's reductions: sums, extremes, softmax and the like."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...._compat.tracing import Traced
from ..views import compact, same
from .calls import Call, register
from .pointwise import BOOLS, FLOATS, INTEGERS, apply, kind_of
from .space import is_one
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
        _refuse_kind(call, wanted, FLOATS, INTEGERS, BOOLS)
        compute = _wide(wanted)
        value = cast(cast(Load(x.dtype, rows.view), wanted), compute)
        made, out = rows.result(wanted)
        total = Total(value.dtype)
        result = cast(finish(total, rows) if finish else total, wanted)
        # Bits have no sum: Triton's is a parity.
        of_bits = {"sum": "any", "prod": "all"} if wanted is torch.bool else {}
        _reduce(call, of_bits.get(kind, kind), value, rows, [total], [(out, result)])
        return made

    return make


def _reduce(
    call: Call,
    kind: str,
    value: Value,
    rows: Dims,
    totals: Sequence[Total],
    results: Sequence[tuple[Traced, Value]],
) -> None:
    """Store each result, a value of the totals, in its tensor."""
    outs, found = zip(*results, strict=True)
    by_row = rows.is_dense or not rows.shape
    few, many, part = _BY_ROW if by_row else _BY_COLUMN
    if not (rows.count > many and math.prod(rows.shape) < few):
        call.reduce(kind, outs, value, found, rows.sizes)
        return
    parts = torch.sym_min((rows.count + (part - 1)) // part, _MOST_PARTS)
    partial = [_partial(call, rows.shape, parts, total.dtype, by_row=by_row) for total in totals]
    first, *rest = (Load(tensor.dtype, tensor) for tensor in partial)
    call.reduce(kind, tuple(partial), value, tuple(totals), rows.sizes, parts=parts)
    call.reduce(kind, outs, first, found, (parts,), rest=tuple(rest))


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


def _refuse_kind(call: Call, dtype: torch.dtype, *kinds: str) -> None:
    """Raise as torch does for a dtype that a call does not have."""
    if kind_of(dtype) not in kinds:
        raise NotImplementedError(f"{call.made.name} is not implemented for {dtype}")


def _mean(total: Value, rows: Dims) -> Value:
    return apply("divide({0}, {1})", total, Number(total.dtype, rows.count))


def _truth(kind: str) -> Any:
    """`any` and `all`, of elements that are not 0."""

    def make(call: Call, x: Traced, dims: Any = None, keepdim: bool = False) -> Any:
        _refuse_kind(call, x.dtype, FLOATS, INTEGERS, BOOLS)
        rows = Dims(call, x, dims, keepdim)
        made, out = rows.result(_result_dtype(kind, x.dtype))
        value, total = cast(Load(x.dtype, rows.view), torch.bool), Total(torch.bool)
        _reduce(call, kind, value, rows, [total], [(out, cast(total, out.dtype))])
        return made

    return make


def _place(kind: str) -> Any:
    """`argmax` and `argmin`: the first of the extremes."""

    def make(call: Call, x: Traced, dim: Any = None, keepdim: bool = False) -> Any:
        _refuse_kind(call, x.dtype, FLOATS, INTEGERS)
        rows = Dims(call, x, dim, keepdim)
        rows.refuse_nothing(kind)
        made, out = rows.result(torch.int64)
        value = cast(Load(x.dtype, rows.view), _wide(x.dtype))
        most, place = Total(value.dtype), Total(torch.int64, 1)
        _reduce(call, kind, value, rows, [most, place], [(out, place)])
        return made

    return make


def _extreme(kind: str) -> Any:
    """`max` and `min` along a dimension: the extreme, and where it is."""

    def make(call: Call, x: Traced, dim: int, keepdim: bool = False) -> Any:
        _refuse_kind(call, x.dtype, FLOATS, INTEGERS, BOOLS)
        rows = Dims(call, x, dim, keepdim)
        rows.refuse_nothing(kind)
        found, out = rows.result(x.dtype)
        at, out_at = rows.result(torch.int64)
        value = cast(Load(x.dtype, rows.view), _wide(x.dtype))
        most, place = Total(value.dtype), Total(torch.int64, 1)
        results = [(out, cast(most, x.dtype)), (out_at, place)]
        _reduce(call, kind, value, rows, [most, place], results)
        return found, at

    return make


def _logsumexp(call: Call, x: Traced, dims: Any, keepdim: bool = False) -> Any:
    dtype = x.dtype if x.dtype.is_floating_point else torch.float32
    _refuse_kind(call, dtype, FLOATS)
    rows = Dims(call, x, dims, keepdim)
    value = cast(Load(x.dtype, rows.view), _wide(dtype))
    made, out = rows.result(dtype)
    most, total = Total(value.dtype), Total(value.dtype, 1)
    # The logarithm of nothing is -inf, of an infinite sum inf.
    result = apply("tl.where(is_infinite({0}), {0}, log({1}) + {0})", most, total)
    _reduce(call, "logsumexp", value, rows, [most, total], [(out, cast(result, dtype))])
    return made


# Where all elements are -inf, or one is inf, torch's total is NaN.
_TOTAL = 'tl.where(is_infinite({1}), float("nan"), {2})'


def _softmax(text: str, alone: str) -> Any:
    """`alone` is for an element that is the only one, which may be infinite."""

    def make(call: Call, x: Traced, dim: int, half_to_float: bool) -> Any:
        dtype = torch.float32 if half_to_float else x.dtype
        _refuse_kind(call, dtype, FLOATS)
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
        _refuse_kind(call, x.dtype, FLOATS)
        rows = Dims(call, x, dims, keepdim)
        value = cast(Load(x.dtype, rows.view), _wide(x.dtype))
        correction = 1 if correction is None else correction
        mean, squares, count = (Total(value.dtype, number) for number in range(3))
        less = apply("largest({0} - {1}, {2})", count, Number(value.dtype, correction),
                     Number(value.dtype, 0))  # fmt: skip
        variance = apply("divide({0}, {1})", squares, less)
        empty = apply("tl.where({0} > 0, {1}, {2})", count, mean, Number(value.dtype, math.nan))
        found = {"mean": empty, "var": variance, "std": apply("root({0})", variance)}
        made, results = [], []
        for name in pick:
            one, out = rows.result(x.dtype)
            made.append(one)
            results.append((out, cast(found[name], x.dtype)))
        _reduce(call, "moments", value, rows, [mean, squares, count], results)
        return made[0] if len(made) == 1 else tuple(made)

    return make


def _cumsum(call: Call, x: Traced, dim: int, *, dtype: Any = None) -> Any:
    wanted = dtype or _result_dtype("sum", x.dtype)
    _refuse_kind(call, wanted, FLOATS, INTEGERS)
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
    made, out = rows.result(wanted)
    square, total = apply("{0} * {0}", value), Total(value.dtype)
    result = cast(apply("root({0})", total), wanted)
    _reduce(call, "sum", square, rows, [total], [(out, result)])
    return made


register({
    _ATEN.sum.default: lambda call, x, *, dtype=None: _simple("sum")(call, x, dtype=dtype),
    _ATEN.sum.dim_IntList: _simple("sum"),
    _ATEN.prod.default: lambda call, x, *, dtype=None: _simple("prod")(call, x, dtype=dtype),
    _ATEN.prod.dim_int: _simple("prod"),
    _ATEN.mean.default: lambda call, x, *, dtype=None: _simple("sum", _mean)(call, x, dtype=dtype),
    _ATEN.mean.dim: _simple("sum", _mean),
    _ATEN.amax.default: _simple("amax"),
    _ATEN.amin.default: _simple("amin"),
    _ATEN.max.default: _simple("amax"),
    _ATEN.min.default: _simple("amin"),
    _ATEN.max.dim: _extreme("argmax"),
    _ATEN.min.dim: _extreme("argmin"),
    _ATEN.argmax.default: _place("argmax"),
    _ATEN.argmin.default: _place("argmin"),
    _ATEN.any.default: _truth("any"),
    _ATEN.any.dim: _truth("any"),
    _ATEN.any.dims: _truth("any"),
    _ATEN.all.default: _truth("all"),
    _ATEN.all.dim: _truth("all"),
    _ATEN.all.dims: _truth("all"),
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
