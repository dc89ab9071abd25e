"""What torch calls compute, element by element: a tree of values over an index space.

    torch.sigmoid(x * 2)  ->  Applied("sigmoid({0})", (Applied("{0} * {1}", (Load(x), Number(2)))))

A tree says nothing of memory but where its leaves are loaded from, so that trees can be put
together before a kernel is written for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ...._compat.tracing import Traced
from ...ir.places import Place


@dataclass(frozen=True, eq=False)
class Value:
    """An element of `dtype` at every point of the index space."""

    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Load(Value):
    """An element of a tensor that has the sizes of the index space."""

    tensor: Traced


@dataclass(frozen=True, eq=False)
class Number(Value):
    """The same number everywhere; it may be symbolic."""

    number: Any


@dataclass(frozen=True, eq=False)
class Position(Value):
    """Where along one dimension an element lies."""

    dim: int


@dataclass(frozen=True, eq=False)
class Applied(Value):
    """A Triton expression of other values: `{0}`, `{1}` stand for them."""

    text: str
    args: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Fetched(Value):
    """An element of a tensor at a computed position along one more dimension.

    `tensor` has the sizes of the index space; `size` and `step` are those of the dimension, and
    `check` is the function that a position goes through.
    """

    tensor: Traced
    at: Value
    size: Any
    step: Any
    check: str


@dataclass(frozen=True)
class TorchCall:
    """A call of the body: torch's operator, what people call it, and its `file:line`."""

    operator: str
    name: str
    location: Place


@dataclass(eq=False)
class Computed:
    """A torch call: sets every element of `out` to a value."""

    out: Traced
    value: Value
    # More than one where it took in others, which stand before it.
    calls: tuple[TorchCall, ...]
    # Whether each call has tensors of fp16, integers and bools only, so that no denormal number of
    # fp32 can matter.
    is_small: bool = False


@dataclass(frozen=True, eq=False)
class Total(Value):
    """What a reduction has found, one of them if it finds several."""

    number: int = 0


@dataclass(eq=False)
class Reduced:
    """A torch call that takes the elements of several dimensions together.

    `value` is over the dimensions that stay and then those that go. Each of `results` is stored in
    the tensor of `outs` at its place, which has the dimensions that stay.
    """

    kind: str
    outs: tuple[Traced, ...]
    value: Value
    results: tuple[Value, ...]
    # The sizes of the dimensions that go.
    sizes: tuple[Any, ...]
    calls: tuple[TorchCall, ...]
    # How many programs share the elements of one result, if more than one do.
    parts: Any = 1
    # So many elements that all of a result are among them; 0 if there may be more.
    fits: int = 0
    # `value` is the first total of a part, and these are the others.
    rest: tuple[Value, ...] = ()
    # A tensor over all dimensions, and its value, made of the elements and of the totals.
    spread: tuple[tuple[Traced, Value], ...] = ()


@dataclass(eq=False)
class Group:
    """Steps over one index space that become one kernel."""

    steps: list[Computed]
    # By id, those whose results go to memory.
    stored: set[int] = field(default_factory=set)

    @property
    def calls(self) -> list[TorchCall]:
        return [call for step in self.steps for call in step.calls]

    @property
    def is_small(self) -> bool:
        return all(step.is_small for step in self.steps)


@dataclass(eq=False)
class Called:
    """A torch call that is a kernel of its own; tensors among its arguments stand for pointers."""

    fn: Any
    arguments: dict[str, Any]
    grid: tuple[Any, ...]
    options: dict[str, Any]
    # The tensor that it writes to.
    out: Traced
    calls: tuple[TorchCall, ...]
    # What else people should know of it.
    said: str = ""

    def memories(self) -> Iterator[Any]:
        yield from (a.memory for a in self.arguments.values() if isinstance(a, Traced))


@dataclass(eq=False)
class Scanned:
    """A torch call that adds up what comes before each element, along the last dimension."""

    out: Traced
    value: Value
    calls: tuple[TorchCall, ...]


def leaves(value: Value) -> list[Value]:
    """What a value is made of, itself included, each part once, after its own parts."""
    found: list[Value] = []
    seen: set[int] = set()
    # A value comes a second time, without its parts, when these are through. A chain of calls is
    # too deep for a generator within a generator.
    waiting: list[tuple[Value, bool]] = [(value, False)]
    while waiting:
        one, is_through = waiting.pop()
        if is_through:
            found.append(one)
        elif id(one) not in seen:
            seen.add(id(one))
            waiting.append((one, True))
            parts = one.args if isinstance(one, Applied) else ()
            parts = (one.at,) if isinstance(one, Fetched) else parts
            waiting += [(part, False) for part in reversed(parts)]
    return found


def loaded(value: Value) -> list[Traced]:
    """The tensors that a value is loaded from."""
    return [one.tensor for one in leaves(value) if isinstance(one, (Load, Fetched))]


class Inexpressible(Exception):
    """A call that no kernel can make of such tensors, and why."""


def cast(value: Value, dtype: torch.dtype) -> Value:
    """Convert an element as torch does."""
    if value.dtype is dtype:
        return value
    if dtype not in NAMES:
        raise Inexpressible(f"a kernel has no {dtype}")
    if isinstance(value, Number):
        return Number(dtype, value.number)
    if dtype is torch.bool:
        return Applied(dtype, "{0} != 0", (value,))
    return Applied(dtype, f"cast({{0}}, {NAMES[dtype]})", (value,))


# By torch's dtype, the name of Triton's.
NAMES = {
    getattr(torch, torch_name): f"tl.{name}"
    for torch_name, name in {
        "bool": "int1",
        **{n: n for n in ("int8", "int16", "int32", "int64", "float16", "bfloat16", "float32")},
        **{n: n for n in ("uint8", "uint16", "uint32", "uint64", "float64")},
        "float8_e4m3fn": "float8e4nv",
        "float8_e5m2": "float8e5",
    }.items()
}


def is_small(value: Value, *outs: Traced) -> bool:
    """Whether a call loads and stores only numbers that are never denormal in fp32."""
    dtypes = {tensor.dtype for tensor in (*loaded(value), *outs)}
    return all(dtype is torch.float16 or not dtype.is_floating_point for dtype in dtypes)
