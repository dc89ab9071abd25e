"""Writes the Triton kernels of torch calls, and their launches.

x * 2 + y, of dense tensors:

    def torch_mul_add(p0, p1, p2, n, BLOCK: tl.constexpr):
        i = positions(n, BLOCK)
        mask = i < alike(n, i)
        v0 = tl.load(p0 + i, mask=mask)
        v1 = times(v0, tl.full((), 2.0, tl.float32))
        v2 = tl.load(p1 + i, mask=mask)
        v3 = v1 + v2
        tl.store(p2 + i, v3, mask=mask)
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...._compat import kernels
from ...._compat.tracing import Traced
from ...device import torch_math
from ...symbolic.symint import is_symbolic, term_of
from ..views import compact, is_one, is_same_view, same
from .values import (
    NAMES,
    Applied,
    Computed,
    Fetched,
    Group,
    Load,
    Number,
    Position,
    Reduced,
    Scanned,
    TorchCall,
    Total,
    Value,
    leaves,
)

BLOCK = 1024
# torch keeps denormal numbers, which Triton's libdevice flushes to zero unless told otherwise.
OPTIONS: dict[str, Any] = {"num_warps": 4, "enable_reflect_ftz": False}


@dataclass(frozen=True)
class Written:
    """A kernel, what it is launched with, and how many programs there are."""

    fn: Any
    arguments: dict[str, Any]
    grid: tuple[Any, ...]
    options: dict[str, Any]


# Index spaces: which dimensions a kernel counts through, and where their elements lie.


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


def _is_dense(
    tensors: Sequence[Traced], outer: int, inner: int, sizes: Sequence[Any], apart: set[int]
) -> bool:
    if {outer, inner} & apart:
        return False
    return all(same(t.strides[outer], t.strides[inner] * sizes[inner]) for t in tensors)


class Writer:
    """Writes values line by line; `spaces` are what a kernel counts through."""

    def __init__(self, spaces: Sequence[Space], names: Sizes) -> None:
        self.lines: list[str] = []
        self.arguments: dict[str, Any] = {}
        self.spaces, self.names = spaces, names
        # The name of a reduction's results.
        self.totals: Sequence[str] = ()
        self._pointers: list[tuple[Traced, str]] = []
        self._numbers: dict[Any, str] = {}
        self._made: dict[int, str] = {}
        # The value that a part of memory has at this point of the kernel.
        self._current: list[tuple[Traced, str]] = []
        self._count = itertools.count()

    def set(self, tensor: Traced, value: str) -> None:
        """From here on a tensor has a value, whether that is stored or not."""
        self._current = [(t, v) for t, v in self._current if t.memory is not tensor.memory]
        self._current.append((tensor, value))

    def store(self, tensor: Traced, value: str, mask: str = "mask") -> None:
        self.lines.append(f"tl.store({self.address(tensor)}, {value}, mask={mask})")

    def forget(self) -> None:
        """What was computed so far is out of scope."""
        self._made, self._current = {}, []

    def value(self, value: Value) -> str:
        known = self._made.get(id(value))
        if known is None:
            known = self._made[id(value)] = self._new(value)
        return known

    def _new(self, value: Value) -> str:
        if isinstance(value, Load):
            for tensor, text in self._current:
                if is_same_view(tensor, value.tensor):
                    return text
            found = self.line(f"tl.load({self.address(value.tensor)}, mask=mask)")
            self._current.append((value.tensor, found))
            return found
        if isinstance(value, Number):
            return self._number(value)
        if isinstance(value, Total):
            return self.totals[value.number]
        if isinstance(value, Position):
            at = next(filter(None, (s.position(value.dim) for s in self.spaces)), None)
            return "tl.full((), 0, tl.int64)" if at is None else f"{at}.to(tl.int64)"
        if isinstance(value, Fetched):
            size, step = self.names.name(value.size), self.names.name(value.step)
            at = self.line(f"{value.check}(tl.where(mask, {self.value(value.at)}, 0), {size})")
            address = f"{self.address(value.tensor)} + {at}.to(tl.int64) * {step}"
            return self.line(f"tl.load({address}, mask=mask)")
        assert isinstance(value, Applied)
        return self.line(value.text.format(*map(self.value, value.args)))

    def line(self, text: str) -> str:
        name = f"v{next(self._count)}"
        self.lines.append(f"{name} = {text}")
        return name

    def _number(self, value: Number) -> str:
        dtype = NAMES[value.dtype]
        if not is_symbolic(value.number):
            return _full(_literal(value.number, dtype), dtype)
        term = term_of(value.number)
        name = self._numbers.get(term)
        if name is None:
            name = self._numbers[term] = f"s{len(self._numbers)}"
            self.arguments[name] = value.number
        return _full(name, dtype)

    def address(self, tensor: Traced) -> str:
        parts = [part for space in self.spaces for part in space.offset(tensor)]
        # All elements read the same one.
        parts = parts or [f"{self.spaces[0].index} * 0"]
        return " + ".join([self._pointer(tensor), *parts])

    def _pointer(self, tensor: Traced) -> str:
        for other, name in self._pointers:
            if (
                other.memory is tensor.memory
                and other.dtype is tensor.dtype
                and same(other.offset, tensor.offset)
            ):
                return name
        name = f"p{len(self._pointers)}"
        self._pointers.append((tensor, name))
        self.arguments[name] = tensor
        return name


def write_group(group: Group) -> Written:
    """The kernel of pointwise calls."""
    out = group.steps[0].out
    loads, apart = _needs(*(step.value for step in group.steps))
    names = Sizes()
    # Neighbours in memory are written by neighbours.
    tensors = [*(step.out for step in group.steps), *loads]
    space = Space(out.sizes, order_of(out), tensors, apart, "i", names)
    writer = Writer([space], names)
    for step in group.steps:
        _write_step(writer, step, stored=id(step) in group.stored)
    head = ["i = positions(n, BLOCK)", "mask = i < alike(n, i)", *space.lines()]
    arguments = {**writer.arguments, "n": space.count, **names.arguments}
    name = kernel_name(group.calls)
    fn = define(name, [*arguments, "BLOCK: tl.constexpr"], [*head, *writer.lines])
    grid = (space.count + (BLOCK - 1)) // BLOCK
    options = {**OPTIONS, "enable_reflect_ftz": group.is_small}
    return Written(fn, {**arguments, "BLOCK": BLOCK}, (grid,), options)


def _needs(*values: Value) -> tuple[list[Traced], set[int]]:
    """The tensors that values are loaded from, and the dimensions whose positions they need."""
    parts = [part for value in values for part in leaves(value)]
    loads = [part.tensor for part in parts if isinstance(part, (Load, Fetched))]
    return loads, {part.dim for part in parts if isinstance(part, Position)}


def _write_step(writer: Writer, step: Computed, *, stored: bool) -> None:
    found = writer.value(step.value)
    writer.set(step.out, found)
    if stored:
        writer.store(step.out, found)


def _full(number: str, dtype: str) -> str:
    if dtype in {"tl.float16", "tl.bfloat16"} or dtype.startswith("tl.float8"):
        return f"cast(tl.full((), {number}, tl.float32), {dtype})"
    return f"tl.full((), {number}, {dtype})"


def _literal(number: Any, dtype: str) -> str:
    if dtype == "tl.int1":
        return str(bool(number))
    if not dtype.startswith(("tl.float", "tl.bfloat")):
        return repr(_wrapped(int(number), dtype))
    number = float(number)
    if number == 0 and math.copysign(1, number) < 0:
        # Triton's constants have no -0.0.
        return f"tl.full((), 0.0, {dtype}) * -1.0"
    return repr(number) if math.isfinite(number) else f'float("{number}")'


def _wrapped(number: int, dtype: str) -> int:
    """-3 as `tl.uint8` is 253."""
    signed = dtype.startswith("tl.int")
    size = 1 << int(dtype.removeprefix("tl.int" if signed else "tl.uint"))
    number %= size
    return number - size if signed and number >= size // 2 else number


_MOST_NAMED = 4


def kernel_name(calls: Sequence[TorchCall]) -> str:
    """`torch_mul_add`."""
    short = [c.operator.removeprefix("aten.").partition(".")[0].strip("_") for c in calls]
    more = [f"and_{len(short) - _MOST_NAMED}_more"] if len(short) > _MOST_NAMED else []
    return "_".join(["torch", *short[:_MOST_NAMED], *more])


def define(name: str, parameters: Sequence[str], body: Sequence[str]) -> Any:
    """A jitted function, the same one for the same text."""
    lines = "\n".join(f"    {line}" for line in body)
    return _function(name, f"def {name}({', '.join(parameters)}):\n{lines}\n")


@functools.lru_cache(maxsize=4096)
def _function(name: str, text: str) -> Any:
    return kernels.jit_text(name, text, _GLOBALS)


_GLOBALS = {name: value for name, value in vars(torch_math).items() if not name.startswith("_")}


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
    """The kernel of a reduction: of `(x * y).sum(-1)`.

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
    return _Reduction(step).written()


class _Reduction:
    def __init__(self, step: Reduced) -> None:
        self.step, self.kind = step, KINDS[step.kind]
        self.split = not same(step.parts, 1)
        outs = [_without_parts(out) for out in step.outs] if self.split else list(step.outs)
        spread = [out for out, _ in step.spread]
        loads, apart = _needs(step.value, *step.rest, *(value for _, value in step.spread))
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
        self.shape = shape

    def written(self) -> Written:
        step, writer = self.step, self.writer
        first = self._over_blocks(self._takes())
        totals = [f"t{number}" for number in range(len(self.kind.starts))]
        writer.totals = totals
        body = [*self._starts(), *first]
        body.append(f"{', '.join(totals)} = {_combined(totals, self.kind.combines)}")
        body += self._results() + self._spread()
        head = ["i = positions(n, ROWS)[:, None]", "inside = i < alike(n, i)", *self.rows.lines()]
        if not self.split:
            return _of_rows(step, writer, self.shape, [*head, *body])
        head += [
            "part = tl.program_id(1)",
            "first = part.to(tl.int64) * each",
            "last = smallest(first + each, wide(r))",
        ]
        each = _rounded_up(-(-self.inner.count // step.parts), self.shape[1])
        return _of_rows(step, writer, self.shape, [*head, *body], (step.parts,), each=each)

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
    loads, apart = _needs(step.value)
    tensors, names = [step.out, *loads], Sizes()
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
    return _of_rows(step, writer, _shape(rows, inner, step.out, 0), text)


def _of_rows(
    step: Reduced | Scanned,
    writer: Writer,
    shape: tuple[int, int, int],
    text: Sequence[str],
    parts: tuple[Any, ...] = (),
    **more: Any,
) -> Written:
    """A kernel whose programs take some rows each, a block of their elements at a time."""
    (rows, inner), (by_rows, block, warps) = writer.spaces, shape
    arguments = {**writer.arguments, "n": rows.count, "r": inner.count}
    arguments |= {**writer.names.arguments, **more}
    parameters = [*arguments, "ROWS: tl.constexpr", "BLOCK: tl.constexpr"]
    fn = define(kernel_name(step.calls), parameters, text)
    programs = (rows.count + (by_rows - 1)) // by_rows
    constants = {"ROWS": by_rows, "BLOCK": block}
    options = {**OPTIONS, "num_warps": warps}
    return Written(fn, {**arguments, **constants}, (programs, *parts), options)


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
