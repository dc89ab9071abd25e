"""Random parameter trees with random values: taking apart and rebuilding is the identity."""

# The old spellings are tested, too.
# ruff: noqa: UP045

import dataclasses
import enum
import itertools
import keyword
import math
import typing
from dataclasses import dataclass
from typing import Any, Literal, Optional

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import opforge
from support.sameness import same

numbers = itertools.count()
MODEST = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
X = torch.ones(2)


@dataclass(frozen=True)
class Kind:
    """An annotation, and how to draw values for it."""

    annotation: Any
    values: st.SearchStrategy[Any]
    holds_tensor: bool = False


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10


class Shape(enum.Enum):
    SQUARE = (1, 1)
    WIDE = 2.5


INT64 = st.integers(-(2**63), 2**63 - 1)
# Without -0.0, which the dispatcher treats as a default of 0.0.
FLOATS = st.floats().filter(lambda f: f != 0 or math.copysign(1, f) > 0)
# In torch.equal NaN differs from itself, so tensors hold none.
TENSORS = st.lists(st.integers(-9, 9), max_size=3).map(
    lambda v: torch.tensor(v, dtype=torch.float64)
)
PLAIN = [
    Kind(int, INT64),
    Kind(float, FLOATS),
    Kind(bool, st.booleans()),
    Kind(str, st.text(max_size=5)),
    Kind(torch.types.Number, st.one_of(INT64, FLOATS, st.booleans())),
    Kind(torch.dtype, st.sampled_from([torch.float32, torch.int8, torch.bool])),
    Kind(torch.device, st.sampled_from([torch.device("cpu"), torch.device("meta")])),
    Kind(Tensor, TENSORS, holds_tensor=True),
    Kind(Literal["a", "b c", ""], st.sampled_from(["a", "b c", ""])),
    Kind(Literal[1, -2], st.sampled_from([1, -2])),
    Kind(Literal[True], st.just(True)),
    Kind(Color, st.sampled_from(Color)),
    Kind(Level, st.sampled_from(Level)),
    Kind(Shape, st.sampled_from(Shape)),
]
NAMES = st.from_regex(r"[a-z][a-z0-9]{0,3}", fullmatch=True).filter(
    lambda name: not keyword.iskeyword(name) and name != "present"
)


@st.composite
def perhaps_optional(draw, kinds):
    kind = draw(kinds)
    if draw(st.integers(0, 2)):
        return kind
    values = st.one_of(st.none(), kind.values)
    return Kind(Optional[kind.annotation], values, kind.holds_tensor)


@st.composite
def containers(draw):
    """A list or a tuple of any length, of something plain."""
    # A list of dtypes that may be None, or hold it, is refused.
    kinds = [kind for kind in PLAIN if kind.annotation is not torch.dtype]
    element = draw(perhaps_optional(st.sampled_from(kinds)))
    listed = st.lists(element.values, max_size=3)
    if draw(st.booleans()):
        return Kind(list[element.annotation], listed, element.holds_tensor)
    return Kind(tuple[element.annotation, ...], listed.map(tuple), element.holds_tensor)


@st.composite
def records(draw, children):
    """A tuple of fixed length, a NamedTuple or a frozen dataclass of other kinds."""
    parts = draw(st.lists(children, max_size=3))
    values = st.tuples(*(p.values for p in parts))
    holds = any(p.holds_tensor for p in parts)
    make = draw(st.sampled_from([as_tuple, as_named_tuple, as_dataclass, as_slotted_dataclass]))
    names = draw(st.lists(NAMES, min_size=len(parts), max_size=len(parts), unique=True))
    annotation, build = make(names, [p.annotation for p in parts])
    return Kind(annotation, values.map(build), holds)


def as_tuple(names, annotations):
    return tuple[tuple(annotations)], tuple


def as_named_tuple(names, annotations):
    cls = typing.NamedTuple(f"Named{next(numbers)}", list(zip(names, annotations, strict=True)))
    return cls, lambda parts: cls(*parts)


def as_dataclass(names, annotations, **options):
    fields = list(zip(names, annotations, strict=True))
    cls = dataclasses.make_dataclass(f"Made{next(numbers)}", fields, frozen=True, **options)
    return cls, lambda parts: cls(*parts)


def as_slotted_dataclass(names, annotations):
    return as_dataclass(names, annotations, slots=True)


LEAVES = perhaps_optional(st.one_of(st.sampled_from(PLAIN), containers()))
KINDS = st.recursive(LEAVES, lambda children: perhaps_optional(records(children)), max_leaves=8)


def make_op(name, kinds, defaults=()):
    """An op whose body keeps what it saw."""
    seen = []

    def f(x, *args):
        seen.append(args)
        return x.clone()

    names = [f"p{i}" for i in range(len(kinds))]
    source = f"def echo(x, {', '.join(names)}): return f(x, {', '.join(names)})"
    space = {"f": f, "__name__": __name__}
    exec(source.replace("x, )", "x)"), space)
    echo = space["echo"]
    echo.__annotations__ = {
        "x": Tensor,
        **{n: k.annotation for n, k in zip(names, kinds, strict=True)},
        "return": Tensor,
    }
    echo.__defaults__ = tuple(defaults) or None
    return opforge.op(name, fake=["x"])(echo), seen


@MODEST
@given(st.data(), st.lists(KINDS, min_size=1, max_size=3))
def test_taking_apart_and_rebuilding_is_the_identity(data, kinds):
    op, seen = make_op(f"opforge_hypothesis::op{next(numbers)}", kinds)
    try:
        for _ in range(3):
            values = tuple(data.draw(k.values) for k in kinds)
            op(X, *values)
            assert same(seen[-1], values)
            op(x=X, **{f"p{i}": v for i, v in enumerate(values)})
            assert same(seen[-1], values)
    finally:
        opforge.unregister(op)
