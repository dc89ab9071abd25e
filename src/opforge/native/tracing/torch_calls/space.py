"""Index spaces: which dimensions a kernel counts through, and where their elements lie."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from ...._compat.tracing import Traced
from ...symbolic.symint import is_symbolic, term_of
from ..views import compact, same


class Sizes:
    """The sizes and strides that a kernel takes as arguments."""

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = {}
        self._named: dict[Any, str] = {}

    def name(self, size: Any) -> str:
        """A size as the kernel writes it."""
        if not is_symbolic(size) and abs(size) < 2**31:
            return repr(size)
        term = term_of(size)
        if term not in self._named:
            self._named[term] = f"d{len(self._named)}"
            self.arguments[self._named[term]] = size
        return self._named[term]


class Space:
    """Some dimensions of tensors, of which those that lie densely in all tensors are one.

    `index` is the kernel's variable for the position in all of them.
    """

    def __init__(
        self,
        sizes: Sequence[Any],
        dims: Sequence[int],
        tensors: Sequence[Traced],
        apart: set[int],
        index: str,
        names: Sizes,
    ) -> None:
        self.index, self.names = index, names
        self._used: set[int] = set()
        # Each is a run of dimensions, the outermost first.
        self.runs: list[list[int]] = []
        for d in dims:
            if is_one(sizes[d]):
                continue
            if self.runs and _is_dense(tensors, self.runs[-1][-1], d, sizes, apart):
                self.runs[-1].append(d)
            else:
                self.runs.append([d])
        self.sizes = [math.prod(sizes[d] for d in run) for run in self.runs]
        self.count = math.prod(self.sizes)
        self._dense = compact(self.sizes)

    def is_dense(self, tensor: Traced) -> bool:
        return all(map(same, self._strides(tensor), self._dense))

    def _strides(self, tensor: Traced) -> list[Any]:
        return [tensor.strides[run[-1]] for run in self.runs]

    def offset(self, tensor: Traced) -> list[str]:
        """Where elements of a tensor lie, as terms of a sum."""
        if self.runs and self.is_dense(tensor):
            return [self.index]
        parts = []
        strides = self._strides(tensor)
        for number, stride in enumerate(strides):
            if not is_symbolic(stride) and stride == 0:
                continue
            index = self._index(number)
            parts.append(
                index if is_one(stride) else f"{index}.to(tl.int64) * {self.names.name(stride)}"
            )
        return parts

    def position(self, dim: int) -> str | None:
        for number, run in enumerate(self.runs):
            if dim in run:
                assert len(run) == 1, "a dimension whose positions are needed stays by itself"
                return self._index(number)
        return None

    def _index(self, number: int) -> str:
        self._used.add(number)
        return self.index if len(self.runs) == 1 else f"{self.index}{number}"

    def lines(self) -> Iterator[str]:
        """The position in each run of dimensions that is used."""
        if len(self.runs) == 1 or not self._used:
            return
        rest = self.index
        for number in reversed(range(min(self._used), len(self.runs))):
            if number == 0:
                yield f"{self.index}0 = {rest}"
                return
            size = f"alike({self.names.name(self.sizes[number])}, {self.index})"
            if number in self._used:
                yield f"{self.index}{number} = {rest} % {size}"
            if number > min(self._used):
                yield f"{self.index}r{number} = {rest} // {size}"
                rest = f"{self.index}r{number}"


def order_of(out: Traced) -> Sequence[int]:
    """A tensor's dimensions from the outermost in memory; as they are, if that is not known."""
    rank = len(out.sizes)
    if rank <= _MOST_ORDERED:
        for order in itertools.permutations(range(rank)):
            strides = compact([out.sizes[d] for d in order])
            if all(map(same, [out.strides[d] for d in order], strides)):
                return order
    return range(rank)


_MOST_ORDERED = 5


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


def _is_dense(
    tensors: Sequence[Traced], outer: int, inner: int, sizes: Sequence[Any], apart: set[int]
) -> bool:
    if {outer, inner} & apart:
        return False
    return all(same(t.strides[outer], t.strides[inner] * sizes[inner]) for t in tensors)


def is_one(size: Any) -> bool:
    return not is_symbolic(size) and size == 1
