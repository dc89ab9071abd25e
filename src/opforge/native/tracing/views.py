"""torch's view operators on symbolic sizes, strides and offsets.

Each is a function of the tensor and the operator's arguments. A comparison of symbolic sizes in
here becomes a guard of the path, where torch would have decided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..._compat.tracing import Traced
from ..symbolic.symint import MANY, Symbols, dense, is_symbolic, term_of, times

Sizes = Sequence[Any]

_END = 2**63 - 1
_ATEN = torch.ops.aten


def compact(sizes: Sizes) -> list[Any]:
    """`(m, n, 4)` -> `[n * 4, 4, 1]`."""
    strides: list[Any] = []
    stride: Any = 1
    for size in reversed(sizes):
        strides.append(stride)
        stride = times(stride, size if is_symbolic(size) else max(size, 1))
    return strides[::-1]


def same(a: Any, b: Any) -> bool:
    """Whether two sizes are the same term; adds no guard."""
    return term_of(a) == term_of(b)


def is_compact(tensor: Traced) -> bool:
    """Whether a tensor is dense for all sizes."""
    expected = compact(tensor.sizes)
    return all(
        same(stride, want) or is_one(size)
        for size, stride, want in zip(tensor.sizes, tensor.strides, expected, strict=True)
    )


def is_one(size: Any) -> bool:
    return not is_symbolic(size) and size == 1


def same_all(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(map(same, a, b))


def is_same_view(a: Traced, b: Traced) -> bool:
    return (
        a.memory is b.memory
        and a.dtype is b.dtype
        and same(a.offset, b.offset)
        and same_all(a.sizes, b.sizes)
        and same_all(a.strides, b.strides)
    )


def is_dense(x: Traced) -> bool:
    """Whether a tensor is known to be compact in some order of its dimensions."""
    left = [d for d, size in enumerate(x.sizes) if not is_one(size)]
    stride: Any = 1
    while left:
        inner = next((d for d in left if same(x.strides[d], stride)), None)
        if inner is None:
            return False
        left.remove(inner)
        stride *= x.sizes[inner]
    return True


def is_contiguous(symbols: Symbols, tensor: Traced, order: Sequence[int] | None = None) -> bool:
    """Torch's is_contiguous; one guard if strides are symbolic."""
    if order is None and is_compact(tensor):
        return True
    order = range(len(tensor.sizes)) if order is None else order
    sizes, strides = [tensor.sizes[d] for d in order], [tensor.strides[d] for d in order]
    algebra = symbols.algebra
    wanted = []
    for size, stride, want in zip(sizes, strides, compact(sizes), strict=True):
        one = algebra.compare("==", term_of(size), 1)
        wanted.append(algebra.either(one, algebra.compare("==", term_of(stride), term_of(want))))
    # A tensor without elements is contiguous.
    nothing = [algebra.compare("==", term_of(size), 0) for size in sizes]
    return symbols.ask(algebra.either(*nothing, algebra.both(*wanted)))


class Views:
    """Makes tensors that share the memory of others."""

    def __init__(self, symbols: Symbols) -> None:
        self.symbols = symbols

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The view that an operator returns, or NotImplemented."""
        make = _VIEWS.get(func)
        return NotImplemented if make is None else make(self, *args, **kwargs)

    def of(
        self, base: Traced, sizes: Sizes, strides: Sizes, offset: Any = None, dtype: Any = None
    ) -> Traced:
        offset = base.offset if offset is None else offset
        return Traced(base.memory, sizes, strides, offset, dtype or base.dtype)

    def same(self, x: Traced, *_: Any, **__: Any) -> Traced:
        return self.of(x, x.sizes, x.strides)

    def view(self, x: Traced, shape: Sizes) -> Traced:
        sizes = _inferred(x, shape)
        if is_compact(x):
            return self.of(x, sizes, compact(sizes))
        # A tensor without elements can be viewed in any shape.
        nothing = math.prod(x.sizes) == 0
        strides = compact(sizes) if nothing else _view_strides(x, sizes)
        if strides is None:
            raise RuntimeError(
                f"view size {list(sizes)} is not compatible with a tensor of shape "
                f"{list(x.sizes)} and strides {list(x.strides)}"
            )
        return self.of(x, sizes, strides)

    def view_dtype(self, x: Traced, dtype: torch.dtype) -> Any:
        if dtype.itemsize != x.dtype.itemsize:
            return NotImplemented
        return self.of(x, x.sizes, x.strides, dtype=dtype)

    def expand(self, x: Traced, shape: Sizes, **_: Any) -> Traced:
        new = len(shape) - len(x.sizes)
        sizes, strides = list(shape), [0] * len(shape)
        for d, (size, stride) in enumerate(zip(x.sizes, x.strides, strict=True), start=new):
            if (not is_symbolic(shape[d]) and shape[d] == -1) or same(shape[d], size):
                sizes[d], strides[d] = size, stride
            elif size == shape[d]:
                strides[d] = stride
            elif size != 1:
                raise RuntimeError(f"expand: size {size} of dimension {d} is not {shape[d]} or 1")
        return self.of(x, sizes, strides)

    def permute(self, x: Traced, dims: Sequence[int], offset: Any = None) -> Traced:
        return self.of(x, [x.sizes[d] for d in dims], [x.strides[d] for d in dims], offset)

    def transpose(self, x: Traced, a: int, b: int) -> Traced:
        order = list(range(len(x.sizes)))
        if order or {a, b} - {0, -1}:
            a, b = _axis(x, a), _axis(x, b)
            order[a], order[b] = order[b], order[a]
        return self.permute(x, order)

    def t(self, x: Traced) -> Traced:
        return self.transpose(x, 0, -1)

    def slice(
        self, x: Traced, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
    ) -> Traced:
        dim = _axis(x, dim)
        size = x.sizes[dim]
        start = _clamped(0 if start is None else start, size)
        whole = end is None or (not is_symbolic(end) and end >= _END)
        end = size if whole else _clamped(end, size)
        length = end - start if step == 1 else (end - start + step - 1) // step
        if not (same(start, 0) or whole) and start > end:
            length = 0
        sizes, strides = list(x.sizes), list(x.strides)
        offset = x.offset + start * strides[dim]
        sizes[dim], strides[dim] = length, strides[dim] * step
        return self.of(x, sizes, strides, offset)

    def select(self, x: Traced, dim: int, index: Any) -> Traced:
        dim = _axis(x, dim)
        size = x.sizes[dim]
        if index < 0:
            index += size
        if index < 0 or index >= size:
            raise IndexError(f"index {index} is out of range for size {size} of dimension {dim}")
        keep = [d for d in range(len(x.sizes)) if d != dim]
        return self.permute(x, keep, x.offset + index * x.strides[dim])

    def unsqueeze(self, x: Traced, dim: int) -> Traced:
        dim %= len(x.sizes) + 1
        stride = x.sizes[dim] * x.strides[dim] if dim < len(x.sizes) else 1
        sizes, strides = list(x.sizes), list(x.strides)
        return self.of(x, [*sizes[:dim], 1, *sizes[dim:]], [*strides[:dim], stride, *strides[dim:]])

    def squeeze(self, x: Traced, dims: Any = None) -> Traced:
        rank = len(x.sizes)
        asked = range(rank) if dims is None else [dims] if isinstance(dims, int) else dims
        gone = {d % rank for d in asked if rank and x.sizes[d] == 1}
        return self.permute(x, [d for d in range(rank) if d not in gone])

    def split(self, x: Traced, size: Any, dim: int = 0) -> list[Traced]:
        dim = _axis(x, dim)
        length = x.sizes[dim]
        pieces = int(self.symbols.value(term_of((length + size - 1) // size)))
        # One guard on the number of parts, which is weaker than one on `length`.
        algebra = self.symbols.algebra
        least, most = term_of(size * (pieces - 1)), term_of(size * pieces)
        enough = algebra.compare("<=", term_of(length), most)
        if pieces > MANY:
            raise self.symbols.not_constant(term_of(length))
        self.symbols.ask(algebra.both(algebra.compare("<", least, term_of(length)), enough))
        ends = [size * (i + 1) for i in range(pieces - 1)] + [length]
        return [self.slice(x, dim, size * i, end) for i, end in enumerate(ends)]

    def split_with_sizes(self, x: Traced, sizes: Sizes, dim: int = 0) -> list[Traced]:
        found: list[Traced] = []
        start: Any = 0
        for size in sizes:
            if size < 0:
                raise RuntimeError(f"split sizes {list(sizes)} must not be negative")
            found.append(self.narrow(x, dim, start, size))
            start += size
        if start != x.sizes[dim]:
            raise RuntimeError(f"split sizes {list(sizes)} do not sum up to {x.sizes[dim]}")
        return found

    def narrow(self, x: Traced, dim: int, start: Any, length: Any) -> Traced:
        dim = _axis(x, dim)
        sizes = list(x.sizes)
        sizes[dim] = length
        return self.of(x, sizes, x.strides, x.offset + start * x.strides[dim])

    def unbind(self, x: Traced, dim: int = 0) -> list[Traced]:
        dim = _axis(x, dim)
        count = self.symbols.specialize(term_of(x.sizes[dim]))
        return [self.select(x, dim, i) for i in range(int(count))]

    def as_strided(self, x: Traced, sizes: Sizes, strides: Sizes, offset: Any = None) -> Traced:
        start = x.offset if offset is None else offset
        strides = list(map(dense, strides))
        last = start + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        if last >= self.symbols.integer(x.memory.count):
            raise RuntimeError(f"as_strided: element {last} lies beyond the tensor's memory")
        return self.of(x, sizes, strides, offset)

    def diagonal(self, x: Traced, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
        if offset:
            return NotImplemented
        rank = len(x.sizes)
        dim1, dim2 = dim1 % rank, dim2 % rank
        keep = [d for d in range(rank) if d not in {dim1, dim2}]
        size = torch.sym_min(x.sizes[dim1], x.sizes[dim2])
        sizes = [*(x.sizes[d] for d in keep), size]
        strides = [*(x.strides[d] for d in keep), x.strides[dim1] + x.strides[dim2]]
        return self.of(x, sizes, strides)


_VIEWS: dict[Any, Callable[..., Any]] = {
    _ATEN.view.default: Views.view,
    _ATEN._unsafe_view.default: Views.view,  # noqa: SLF001  # that is its name
    _ATEN.view.dtype: Views.view_dtype,
    _ATEN.expand.default: Views.expand,
    _ATEN.permute.default: Views.permute,
    _ATEN.transpose.int: Views.transpose,
    _ATEN.t.default: Views.t,
    _ATEN.slice.Tensor: Views.slice,
    _ATEN.select.int: Views.select,
    _ATEN.unsqueeze.default: Views.unsqueeze,
    _ATEN.squeeze.default: Views.squeeze,
    _ATEN.squeeze.dim: Views.squeeze,
    _ATEN.squeeze.dims: Views.squeeze,
    _ATEN.split.Tensor: Views.split,
    _ATEN.split_with_sizes.default: Views.split_with_sizes,
    _ATEN.unbind.int: Views.unbind,
    _ATEN.as_strided.default: Views.as_strided,
    _ATEN.diagonal.default: Views.diagonal,
    _ATEN.alias.default: Views.same,
    _ATEN.detach.default: Views.same,
    _ATEN.lift_fresh.default: Views.same,
}


def _inferred(x: Traced, shape: Sizes) -> list[Any]:
    """The sizes of a view, with -1 resolved."""
    sizes = list(shape)
    total = math.prod(x.sizes)
    open_ = [d for d, size in enumerate(sizes) if not is_symbolic(size) and size == -1]
    if open_:
        known = math.prod(s for d, s in enumerate(sizes) if d != open_[0])
        if not same(known, 1) and known < 1:
            raise RuntimeError(f"cannot infer -1 in shape {list(shape)} of an empty tensor")
        sizes[open_[0]] = total if same(known, 1) else total // known
    if not same(math.prod(sizes), total) and math.prod(sizes) != total:
        raise RuntimeError(f"shape {list(shape)} is invalid for a tensor of {total} elements")
    return sizes


def _view_strides(x: Traced, sizes: Sizes) -> list[Any] | None:
    """Strides of a view of a tensor that is not dense, or None if there is no such view."""
    if not x.sizes:
        return [1] * len(sizes)
    strides: list[Any] = [0] * len(sizes)
    at = len(sizes) - 1
    base = x.strides[-1]
    old: Any = 1
    new: Any = 1
    for d in reversed(range(len(x.sizes))):
        old *= x.sizes[d]
        # A run of dimensions that are dense together can be split in another way.
        if d == 0 or (x.sizes[d - 1] != 1 and x.strides[d - 1] != old * base):
            while at >= 0 and (new < old or sizes[at] == 1):
                strides[at] = new * base
                new *= sizes[at]
                at -= 1
            if new != old:
                return None
            if d > 0:
                base = x.strides[d - 1]
                old = new = 1
    return strides if at < 0 else None


def _axis(x: Traced, dim: int) -> int:
    rank = len(x.sizes)
    if not -rank <= dim < rank:
        raise IndexError(f"dimension {dim} is out of range for a tensor of {rank} dimensions")
    return dim % rank


def _clamped(index: Any, size: Any) -> Any:
    """An end of a slice as in Python: negative ones count from the end."""
    if index < 0:
        index += size
        if index < 0:
            return 0
    return min(index, size)
