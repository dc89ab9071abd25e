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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...._compat import kernels
from ...._compat.tracing import Traced
from ...device import torch_math
from ...symbolic.symint import is_symbolic, term_of
from ..views import same
from .fusion import is_same_view
from .space import Sizes, Space, order_of
from .values import (
    NAMES,
    Applied,
    Computed,
    Fetched,
    Group,
    Load,
    Number,
    Position,
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
    values = [v for step in group.steps for v in leaves(step.value)]
    tensors = [step.out for step in group.steps]
    tensors += [v.tensor for v in values if isinstance(v, (Load, Fetched))]
    apart = {v.dim for v in values if isinstance(v, Position)}
    names = Sizes()
    # Neighbours in memory are written by neighbours.
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
