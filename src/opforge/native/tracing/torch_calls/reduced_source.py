"""Writes the Triton kernels of reductions.

(x * y).sum(-1):

    def torch_mul_sum(p0, p1, p2, n, r, ROWS: tl.constexpr, BLOCK: tl.constexpr):
        i = positions(n, ROWS)[:, None]
        t0 = tl.full((ROWS, BLOCK), 0.0, tl.float32)
        for start in range(0, r, BLOCK):
            j = start + tl.arange(0, BLOCK)[None, :]
            mask = (i < alike(n, i)) & (j < r)
            ...
            t0 = t0 + tl.where(mask, v2, 0.0)
        t0 = tl.reduce(t0, 1, plus, keep_dims=True)
        tl.store(p2 + i, t0, mask=i < alike(n, i))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...._compat.tracing import Traced
from ..views import same
from .source import OPTIONS, Writer, Written, define, kernel_name
from .space import Sizes, Space
from .values import NAMES, Fetched, Load, Position, Reduced, Scanned, leaves


@dataclass(frozen=True)
class Kind:
    """How a kernel takes elements together.

    `{v}` is an element of `{dtype}`, `{begin}` where the first one lies, and `t0`, `t1` are what
    the kernel has so far.
    """

    # By result: its dtype, or the value's; and what it is before the first element.
    starts: tuple[tuple[torch.dtype | None, str], ...]
    # The lines for one block of elements.
    takes: tuple[str, ...]
    # The function that takes two blocks' results together.
    combines: str


def _simple(start: str, take: str, combine: str, dtype: torch.dtype | None = None) -> Kind:
    return Kind(((dtype, start),), (f"t0 = tl.where(mask, {take}, t0)",), combine)


# For `_start`, which knows the dtype.
LOW, HIGH = "LOW", "HIGH"
KINDS = {
    "sum": _simple("0", "t0 + {v}", "plus"),
    "prod": _simple("1", "t0 * {v}", "product"),
    "amax": _simple(LOW, "largest(t0, {v})", "largest"),
    "amin": _simple(HIGH, "smallest(t0, {v})", "smallest"),
    "any": _simple("0", "t0 | {v}", "either"),
    "all": _simple("1", "t0 & {v}", "both"),
    "argmax": Kind(
        ((None, LOW), (torch.int64, "-1")),
        (
            "better = mask & (exceeds({v}, t0) | (t1 < 0))",
            "t0 = tl.where(better, {v}, t0)",
            "t1 = tl.where(better, j, t1)",
        ),
        "first_largest",
    ),
    "argmin": Kind(
        ((None, HIGH), (torch.int64, "-1")),
        (
            "better = mask & (falls_below({v}, t0) | (t1 < 0))",
            "t0 = tl.where(better, {v}, t0)",
            "t1 = tl.where(better, j, t1)",
        ),
        "first_smallest",
    ),
    # The largest, and the sum of exp(x - largest).
    "logsumexp": Kind(
        ((None, LOW), (None, "0")),
        (
            "m = tl.where(mask, largest(t0, {v}), t0)",
            "t1 = tl.where(mask, t1 * scaled(t0, m) + scaled({v}, m), t1)",
            "t0 = m",
        ),
        "sums_of_exps",
    ),
    # The mean, the sum of squared distances from it, and the count.
    "moments": Kind(
        ((None, "0"), (None, "0"), (None, "0")),
        (
            # One division for all: what has an element here had one in every block before.
            "taken = tl.full((), (start - {begin}) // BLOCK + 1, {dtype})",
            "share = divide(tl.full((), 1, {dtype}), taken)",
            "t2 = tl.where(mask, t2 + 1, t2)",
            "delta = {v} - t0",
            "t0 = tl.where(mask, t0 + delta * share, t0)",
            "t1 = tl.where(mask, t1 + delta * ({v} - t0), t1)",
        ),
        "moments",
    ),
}


def write_reduced(step: Reduced) -> Written:
    """The kernel of a reduction."""
    return _Reduction(step).written()


class _Reduction:
    def __init__(self, step: Reduced) -> None:
        self.step, self.kind = step, KINDS[step.kind]
        self.split = not same(step.parts, 1)
        outs = [_without_parts(out) for out in step.outs] if self.split else list(step.outs)
        spread = [out for out, _ in step.spread]
        given = (step.value, *step.rest, *(value for _, value in step.spread))
        values = [one for value in given for one in leaves(value)]
        loads = [v.tensor for v in values if isinstance(v, (Load, Fetched))]
        apart = {v.dim for v in values if isinstance(v, Position)}
        self.outs = [_widened(out, len(step.sizes)) for out in outs]
        whole = loads[0] if loads else None
        rank = len(outs[0].sizes) if outs else len(spread[0].sizes) - len(step.sizes)
        kept = outs[0].sizes if outs else spread[0].sizes[:rank]
        sizes = [*kept, *step.sizes]
        self.names = Sizes()
        tensors = [*loads, *spread, *self.outs]
        self.rows = Space(sizes, range(rank), tensors, apart, "i", self.names)
        gone = range(rank, len(sizes))
        self.inner = Space(sizes, gone, [*loads, *spread], apart, "j", self.names)
        self.writer = Writer([self.rows, self.inner], self.names)
        shape = _shape(self.rows, self.inner, whole, step.fits)
        if self.split and shape == _ALONG_ROWS:
            shape = _ALONG_PARTS
        self.by_rows, self.block, self.warps = shape

    def written(self) -> Written:
        step, writer = self.step, self.writer
        first = self._over_blocks(self._takes())
        totals = [f"t{number}" for number in range(len(self.kind.starts))]
        writer.totals = totals
        body = [*self._starts(), *first]
        body.append(f"{', '.join(totals)} = {_combined(totals, self.kind.combines)}")
        body += self._results() + self._spread()
        head = ["i = positions(n, ROWS)[:, None]", "inside = i < alike(n, i)", *self.rows.lines()]
        arguments = {**writer.arguments, "n": self.rows.count, "r": self.inner.count}
        arguments |= self.names.arguments
        if self.split:
            head += [
                "part = tl.program_id(1)",
                "first = part.to(tl.int64) * each",
                "last = smallest(first + each, wide(r))",
            ]
            arguments["each"] = _rounded_up(-(-self.inner.count // step.parts), self.block)
        parameters = [*arguments, "ROWS: tl.constexpr", "BLOCK: tl.constexpr"]
        fn = define(kernel_name(step.calls), parameters, [*head, *body])
        programs = (self.rows.count + (self.by_rows - 1)) // self.by_rows
        grid = (programs, step.parts) if self.split else (programs,)
        constants = {"ROWS": self.by_rows, "BLOCK": self.block}
        options = {**OPTIONS, "num_warps": self.warps}
        return Written(fn, {**arguments, **constants}, grid, options)

    def _starts(self) -> list[str]:
        return [
            f"t{number} = tl.full((ROWS, BLOCK), {_start(start, dtype)}, {NAMES[dtype]})"
            for number, (dtype, start) in enumerate(self._dtypes())
        ]

    def _dtypes(self) -> list[tuple[torch.dtype, str]]:
        return [(dtype or self.step.value.dtype, start) for dtype, start in self.kind.starts]

    def _takes(self) -> list[str]:
        """Take a block of elements, or of parts, in."""
        elements = [self.writer.value(value) for value in (self.step.value, *self.step.rest)]
        if not self.step.rest:
            given = {
                "v": elements[0],
                "dtype": NAMES[self.step.value.dtype],
                "begin": self._bounds()[0],
            }
            return [*self._taken(), *(line.format(**given) for line in self.kind.takes)]
        totals, both = zip(*((f"t{n}", f"b{n}") for n in range(len(elements))), strict=True)
        return [
            *self._taken(),
            f"{', '.join(both)} = {self.kind.combines}({', '.join([*totals, *elements])})",
            *(f"{t} = tl.where(mask, {b}, {t})" for t, b in zip(totals, both, strict=True)),
        ]

    def _taken(self) -> list[str]:
        lines, self.writer.lines = self.writer.lines, []
        if not self.step.fits:
            self.writer.forget()
        return lines

    def _bounds(self) -> tuple[str, str]:
        return ("first", "last") if self.split else ("0", "wide(r)")

    def _over_blocks(self, lines: Sequence[str]) -> list[str]:
        begin, end = self._bounds()
        each = ["j = start + tl.arange(0, BLOCK)[None, :]", f"mask = inside & (j < {end})"]
        each += self.inner.lines()
        if self.step.fits:
            return ["start = 0", *each, *lines]
        body = [f"    {line}" for line in [*each, *lines]]
        return [f"for start in range({begin}, {end}, BLOCK):", *body]

    def _results(self) -> list[str]:
        self.writer.spaces = [self.rows]
        for out, result in zip(self.outs, self.step.results, strict=True):
            at = self.writer.address(out)
            if self.split:
                at += f" + part * {self.names.name(self.step.outs[0].strides[-1])}"
            found = self.writer.value(result)
            self.writer.lines.append(f"tl.store({at}, {found}, mask=inside)")
        self.writer.spaces = [self.rows, self.inner]
        lines, self.writer.lines = self.writer.lines, []
        return lines

    def _spread(self) -> list[str]:
        if not self.step.spread:
            return []
        for out, value in self.step.spread:
            self.writer.store(out, self.writer.value(value))
        lines, self.writer.lines = self.writer.lines, []
        return lines if self.step.fits else self._over_blocks(lines)


def _start(start: str, dtype: torch.dtype) -> str:
    """What a result is before the first element, as text."""
    if start not in {LOW, HIGH}:
        return start
    if dtype.is_floating_point:
        return 'float("-inf")' if start == LOW else 'float("inf")'
    if dtype is torch.bool:
        return str(start == HIGH)
    return repr(torch.iinfo(dtype).min if start == LOW else torch.iinfo(dtype).max)


def write_scanned(step: Scanned) -> Written:
    """The kernel of a running sum."""
    values = list(leaves(step.value))
    tensors = [step.out, *(v.tensor for v in values if isinstance(v, (Load, Fetched)))]
    apart = {v.dim for v in values if isinstance(v, Position)}
    names = Sizes()
    sizes, rank = step.out.sizes, len(step.out.sizes)
    rows = Space(sizes, range(rank - 1), tensors, apart, "i", names)
    inner = Space(sizes, range(rank - 1, rank), tensors, apart, "j", names)
    writer = Writer([rows, inner], names)
    element = writer.value(step.value)
    dtype = NAMES[step.value.dtype]
    writer.lines += [
        f"found = tl.where(mask, {element}, tl.full((), 0, {dtype}))",
        "before = tl.associative_scan(found, 1, plus) + carry",
        "carry = carry + tl.reduce(found, 1, plus, keep_dims=True)",
    ]
    writer.store(step.out, f"cast(before, {NAMES[step.out.dtype]})")
    block = ["j = start + tl.arange(0, BLOCK)[None, :]", "mask = inside & (j < r)"]
    text = [
        "i = positions(n, ROWS)[:, None]",
        "inside = i < alike(n, i)",
        *rows.lines(),
        f"carry = tl.full((ROWS, 1), 0, {dtype})",
        "for start in range(0, wide(r), BLOCK):",
        *(f"    {line}" for line in [*block, *inner.lines(), *writer.lines]),
    ]
    arguments = {**writer.arguments, "n": rows.count, "r": inner.count, **names.arguments}
    by_rows, count, warps = _shape(rows, inner, step.out, 0)
    fn = define(
        kernel_name(step.calls), [*arguments, "ROWS: tl.constexpr", "BLOCK: tl.constexpr"], text
    )
    grid = ((rows.count + (by_rows - 1)) // by_rows,)
    constants = {"ROWS": by_rows, "BLOCK": count}
    return Written(fn, {**arguments, **constants}, grid, {**OPTIONS, "num_warps": warps})


def _combined(totals: Sequence[str], combine: str) -> str:
    given = totals[0] if len(totals) == 1 else f"({', '.join(totals)})"
    return f"tl.reduce({given}, 1, {combine}, keep_dims=True)"


# Results, elements of each at a time, and warps. The sum of 4096 x 4096 halves, in 1024 parts, took
# 18.0 us on an H200 by parts, 21.0 us by rows, and 19.4 us in torch.
_ALONG_ROWS, _ALONG_PARTS = (1, 2048, 4), (1, 4096, 8)


def _shape(rows: Space, inner: Space, tensor: Traced | None, fits: int) -> tuple[int, int, int]:
    """How many results, how many elements of each at a time, and how many warps."""
    if fits:
        return 1, fits, max(4, min(16, fits // 512))
    if tensor is not None and rows.runs and not _is_unit(inner, tensor):
        # Neighbours in memory are other results' elements.
        return 64, 16, 4
    return _ALONG_ROWS


def _is_unit(space: Space, tensor: Traced) -> bool:
    if not space.runs:
        return True
    return same(tensor.strides[space.runs[-1][-1]], 1)


def _rounded_up(count: Any, block: int) -> Any:
    return (count + (block - 1)) // block * block


def _widened(out: Traced, more: int) -> Traced:
    """A tensor with more dimensions, in which it does not move."""
    sizes, strides = (*out.sizes, *[1] * more), (*out.strides, *[0] * more)
    return Traced(out.memory, sizes, strides, out.offset, out.dtype)


def _without_parts(out: Traced) -> Traced:
    return Traced(out.memory, out.sizes[:-1], out.strides[:-1], out.offset, out.dtype)
