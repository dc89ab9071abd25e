"""The round trip: for every type a parameter may have, the body sees what the user passed.

By position, by keyword and as a default; in eager and inside torch.compile.
"""

# The old spellings are tested, too.
# ruff: noqa: PYI061, UP045

import enum
import inspect
import math
import sys
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, NewType, Optional

import pytest
import torch
from torch import Tensor

import opforge
from opforge.errors import (
    BadOption,
    WrongArgument,
)
from support.sameness import same

X = torch.arange(3.0)
T, U = torch.tensor([1.0, 2.0]), torch.tensor([3])
UserId = NewType("UserId", int)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Rate(enum.Enum):
    SLOW = 0.5
    FAST = 2.0


class Shape(enum.Enum):
    SQUARE = (1, 1)
    WIDE = (2, 1)


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"
    NONE = None


class Listed(enum.Enum):
    SHORT = [1]  # noqa: RUF012  # a member, not a default
    LONG = [1, 2]  # noqa: RUF012


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10


class Upper(str, enum.Enum):
    """A member whose text is not its value."""

    YES = "yes"

    def __new__(cls, value):
        member = str.__new__(cls, value.upper())
        member._value_ = value
        return member


class Doubled(enum.IntEnum):
    """A member whose number is not its value."""

    ONE = 1
    TWO = 2

    def __new__(cls, value):
        member = int.__new__(cls, 2 * value)
        member._value_ = value
        return member


@dataclass(frozen=True)
class Flat:
    scale: float
    rows: int = 3
    name: str = "it's"


@dataclass(frozen=True)
class Inner:
    flat: Flat
    level: Level = Level.LOW


@dataclass(frozen=True)
class Deep:
    inner: Inner
    maybe: Optional[Flat] = None
    pair: tuple[int, float] = (1, 2.0)


@dataclass(frozen=True)
class WithTensors:
    weight: Tensor
    bias: Tensor | None
    more: list[Tensor]
    eps: float = 1e-5


@dataclass(frozen=True)
class Child(Flat):
    extra: bool = True


@dataclass(frozen=True, kw_only=True)
class KeywordOnly:
    early: float = math.inf
    late: int


@dataclass(frozen=True, slots=True)
class Slotted:
    scale: float
    color: Color = Color.RED


@dataclass(frozen=True, slots=True)
class SlottedChild(Slotted):
    more: int = 2


@dataclass(frozen=True)
class Everything:
    dtype: torch.dtype
    device: torch.device
    mode: Literal["a", "b"] | None
    colors: list[Color]
    shape: Shape
    sizes: tuple[int, ...]
    number: torch.types.Number
    point: "Point"


@dataclass(frozen=True)
class Private:
    _hidden: int
    __mangled: float = 0.5
    class_: str = "c"


@dataclass(frozen=True)
class Empty:
    pass


@dataclass(frozen=True)
class Derived:
    n: int
    square: int = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "square", self.n**2)


class Point(NamedTuple):
    x: int
    y: float = 0.5


class Tensors(NamedTuple):
    left: Tensor
    right: Tensor | None


def row(annotation, *values, id):  # noqa: A002  # pytest's own word
    return pytest.param(annotation, values, id=id)


WITHOUT_TENSORS = [
    row(int, 0, -3, 2**40, id="int"),
    row(float, 1.5, 0.0, math.inf, -math.inf, math.nan, 5e-324, id="float"),
    row(bool, True, False, id="bool"),
    row(str, "", "plain", "it's", 'say "hi"', "back\\slash\n", "größe", id="str"),
    row(torch.SymInt, 4, id="SymInt"),
    row(torch.types.Number, 1, 1.5, True, False, id="Number"),
    row(torch.dtype, torch.float16, torch.int64, torch.bool, id="dtype"),
    row(torch.device, torch.device("cpu"), torch.device("meta"), id="device"),
    row(torch.layout, torch.strided, torch.sparse_coo, id="layout"),
    row(
        torch.memory_format,
        torch.contiguous_format,
        torch.channels_last,
        torch.preserve_format,
        id="memory_format",
    ),
    row(Optional[int], 1, None, id="Optional[int]"),
    row(Optional[torch.types.Number], True, 2, None, id="Optional[Number]"),
    row(list[int], [], [1, -2], id="list[int]"),
    row(list[str], [], ["a", "it's"], id="list[str]"),
    row(list[torch.types.Number], [1, 2.5, True], id="list[Number]"),
    row(list[torch.device], [torch.device("cpu")], id="list[device]"),
    row(Optional[list[int]], [1], [], None, id="Optional[list[int]]"),
    row(list[Optional[int]], [1, None], id="list[Optional[int]]"),
    row(tuple[int, ...], (), (1, 2), id="tuple[int, ...]"),
    row(Optional[tuple[int, ...]], (1,), None, id="Optional[tuple[int, ...]]"),
    row(tuple[int, float], (1, 0.5), id="tuple[int, float]"),
    row(tuple[()], (), id="tuple[()]"),
    row(tuple[tuple[int, int], Color], ((1, 2), Color.RED), id="tuple of a tuple and an enum"),
    row(Point, Point(1), Point(2, math.nan), id="NamedTuple"),
    row(Optional[Point], Point(1, 0.0), None, id="Optional[NamedTuple]"),
    row(Literal["a", "b"], "a", "b", id="Literal of str"),
    row(Literal["a", None], "a", None, id="Literal of str and None"),
    row(Literal[True, False], True, False, id="Literal of bool"),
    row(list[Literal["a", "b"]], ["b", "a"], id="list of a Literal"),
    row(Color, Color.RED, Color.BLUE, id="Enum of str"),
    row(Rate, Rate.SLOW, Rate.FAST, id="Enum of float"),
    row(Shape, Shape.SQUARE, Shape.WIDE, id="Enum of tuple"),
    row(Mixed, Mixed.ONE, Mixed.TWO, Mixed.NONE, id="Enum of anything"),
    row(Listed, Listed.SHORT, Listed.LONG, id="Enum of list"),
    row(Level, Level.LOW, Level.HIGH, id="IntEnum"),
    row(Upper, Upper.YES, id="Enum of a str subclass with text of its own"),
    row(Doubled, Doubled.ONE, Doubled.TWO, id="IntEnum with numbers of its own"),
    row(list[Optional[Color]], [Color.RED, None], id="list[Optional[Enum]]"),
    row(tuple[Level, ...], (Level.LOW,), id="tuple[IntEnum, ...]"),
    row(Flat, Flat(2.0), Flat(math.nan, -1, 'say "hi"'), id="dataclass"),
    row(Deep, Deep(Inner(Flat(1.0))), Deep(Inner(Flat(0.5), Level.HIGH), Flat(1.0)), id="nested"),
    row(KeywordOnly, KeywordOnly(late=1), KeywordOnly(early=0.5, late=2), id="kw_only"),
    row(Slotted, Slotted(1.0), Slotted(2.0, Color.BLUE), id="slots"),
    row(SlottedChild, SlottedChild(1.0, Color.BLUE, 3), id="inherited slots"),
    row(Derived, Derived(3), id="init=False"),
    row(Private, Private(1), id="private fields"),
    row(Empty, Empty(), id="dataclass without fields"),
    row(Optional[Flat], Flat(1.0), None, id="Optional[dataclass]"),
    row(Optional[Deep], Deep(Inner(Flat(1.0)), Flat(2.0)), None, id="Optional[nested]"),
    row(Optional[Empty], Empty(), None, id="Optional[dataclass without fields]"),
    row(
        Everything,
        Everything(
            torch.float16,
            torch.device("cpu"),
            None,
            [Color.BLUE],
            Shape.WIDE,
            (1, 2),
            True,
            Point(3, 0.25),
        ),
        id="dataclass of everything",
    ),
    row(tuple[Flat, Optional[Point]], (Flat(1.0), None), id="tuple of records"),
    row(Annotated[int, "rows"], 3, id="Annotated"),
    row(UserId, UserId(7), id="NewType"),
]
WITH_TENSORS = [
    row(Tensor, T, id="Tensor"),
    row(Optional[Tensor], T, None, id="Optional[Tensor]"),
    row(list[Tensor], [T, U], [], id="list[Tensor]"),
    row(Optional[list[Tensor]], [T], None, id="Optional[list[Tensor]]"),
    row(list[Optional[Tensor]], [T, None, U], id="list[Optional[Tensor]]"),
    row(tuple[Tensor, ...], (T, U), (), id="tuple[Tensor, ...]"),
    row(tuple[Tensor, Tensor], (T, U), id="tuple[Tensor, Tensor]"),
    row(Optional[tuple[Tensor, Tensor]], (T, U), None, id="Optional[tuple[Tensor, Tensor]]"),
    row(Tensors, Tensors(T, None), Tensors(T, U), id="NamedTuple of Tensors"),
    row(
        WithTensors,
        WithTensors(T, None, [U, T]),
        WithTensors(T, U, [], 0.5),
        id="dataclass of Tensors",
    ),
    row(Optional[WithTensors], WithTensors(T, U, [T]), None, id="Optional[dataclass of Tensors]"),
]
if sys.version_info >= (3, 11):

    class Text(enum.StrEnum):
        A = "a"
        B = "b"

    WITHOUT_TENSORS += [
        row(Text, Text.A, Text.B, id="StrEnum"),
        row(Optional[Text], Text.B, None, id="Optional[StrEnum]"),
    ]

EVERY_TYPE = pytest.mark.parametrize(("annotation", "values"), WITHOUT_TENSORS + WITH_TENSORS)


class Echo:
    """An op that keeps what its body saw in `seen`."""

    def __init__(self, name, annotation, default=inspect.Parameter.empty):
        self.seen = []

        def echo(x, value):
            self.seen.append(value)
            return x.clone()

        echo.__annotations__ = {"x": Tensor, "value": annotation, "return": Tensor}
        if default is not inspect.Parameter.empty:
            echo.__defaults__ = (default,)
        self.op = opforge.op(name, fake=["x"])(echo)

    def saw(self, value):
        """Whether the last call saw exactly this."""
        assert self.seen, "the body did not run"
        return same(self.seen[-1], value)


@pytest.fixture
def echo(op_name):
    return lambda *args: Echo(op_name(), *args)


@pytest.fixture
def compiled():
    """torch.compile of a function, with nothing left over from other tests."""
    torch.compiler.reset()
    return lambda fn: torch.compile(fn, fullgraph=True, dynamic=True, backend="aot_eager")


@EVERY_TYPE
def test_by_position_and_keyword_the_body_sees_what_was_passed(annotation, values, echo):
    made = echo(annotation)
    for value in values:
        made.op(X, value)
        assert made.saw(value), made.seen[-1]
        made.op(value=value, x=X)
        assert made.saw(value), made.seen[-1]


@pytest.mark.parametrize(("annotation", "values"), WITHOUT_TENSORS)
def test_a_default_reaches_the_body_and_changes_nothing_that_is_passed(annotation, values, echo):
    for default in values:
        made = echo(annotation, default)
        made.op(X)
        assert made.saw(default), made.seen[-1]
        for value in values:
            made.op(X, value)
            assert made.saw(value), (default, made.seen[-1])


def test_in_a_compiled_function_the_body_sees_what_was_passed(echo, compiled):
    # All types in one graph, and no sum of the results, because compiling is what takes the time.
    cases = [case.values for case in WITHOUT_TENSORS + WITH_TENSORS]
    made = [(echo(annotation), echo(annotation)) for annotation, _ in cases]
    ones, others = zip(*((values[0], values[-1]) for _, values in cases), strict=True)

    def run(x, ones, others):
        results = []
        for (placed, named), one, other in zip(made, ones, others, strict=True):
            results += [placed.op(x, one), named.op(value=other, x=x)]
        return results

    assert all(torch.equal(result, X) for result in compiled(run)(X, ones, others))
    for (placed, named), one, other in zip(made, ones, others, strict=True):
        assert placed.saw(one), placed.seen[-1]
        assert named.saw(other), named.seen[-1]


def test_in_a_compiled_function_the_body_sees_the_default(echo, compiled):
    defaults = [(case.values[0], case.values[1][-1]) for case in WITHOUT_TENSORS]
    made = [echo(annotation, value) for annotation, value in defaults]
    compiled(lambda x: [one.op(x) for one in made])(X)
    for one, (annotation, value) in zip(made, defaults, strict=True):
        assert one.saw(value), (annotation, one.seen[-1])


ZEROS = [
    row(float, 0.0, -0.0, id="float"),
    row(torch.types.Number, 0.0, -0.0, id="Number"),
    row(tuple[float, ...], (0.0,), (-0.0,), id="tuple[float, ...]"),
    row(tuple[float, int], (0.0, 1), (-0.0, 1), id="tuple[float, int]"),
    row(Point, Point(1, 0.0), Point(1, -0.0), id="NamedTuple"),
]


@pytest.mark.parametrize(("annotation", "values"), ZEROS)
def test_zero_keeps_its_sign(annotation, values, echo):
    # Only in eager: torch.compile itself treats -0.0 as 0.0, in every op.
    made, with_default = echo(annotation), echo(annotation, values[1])
    with_default.op(X)
    assert with_default.saw(values[1]), with_default.seen[-1]
    for value in values:
        for each in (made, with_default):
            each.op(X, value)
            assert each.saw(value), each.seen[-1]


@pytest.mark.parametrize(("annotation", "values"), ZEROS)
def test_an_argument_that_equals_its_default_arrives_as_the_default(annotation, values, echo):
    """The dispatcher drops it; -0.0 for a default of 0.0 is the one case where that shows."""
    zero, negative = values
    made = echo(annotation, zero)
    made.op(X, negative)
    assert made.saw(zero), made.seen[-1]


@pytest.mark.parametrize(
    ("annotation", "raw", "member"),
    [
        (Color, "red", Color.RED),
        (Rate, 0.5, Rate.SLOW),
        (Shape, (2, 1), Shape.WIDE),
        (Mixed, "two", Mixed.TWO),
        (Level, 10, Level.HIGH),
        (Upper, "yes", Upper.YES),
        (Doubled, 2, Doubled.TWO),
        (Optional[Color], "blue", Color.BLUE),
        (list[Color], ["blue", Color.RED], [Color.BLUE, Color.RED]),
        (list[Rate], [0.5, Rate.FAST], [Rate.SLOW, Rate.FAST]),
    ],
    ids=str,
)
def test_an_enums_raw_value_stands_for_the_member(annotation, raw, member, echo, compiled):
    made = echo(annotation)
    made.op(X, raw)
    assert made.saw(member)
    made.op(X, value=raw)
    assert made.saw(member)
    compiled(lambda x: made.op(x, raw))(X)
    assert made.saw(member)


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (Color, "green", "'green' is not a value of Color"),
        (Level, 3, "3 is not a value of Level"),
        (Shape, (9, 9), "(9, 9) is not a value of Shape"),
        (Literal["a", "b"], "c", "'c' is not a value of Literal"),
        (Literal[True], False, "False is not a value of Literal"),
        (list[Color], ["red", "green"], "'green' is not a value of Color"),
        (Upper, "YES", "'YES' is not a value of Upper"),
    ],
    ids=str,
)
def test_a_value_outside_its_choices_is_refused_with_the_choices(annotation, value, said, echo):
    made = echo(annotation)
    with pytest.raises(BadOption) as caught:
        made.op(X, value)
    text = str(caught.value)
    assert text.startswith(f"{opforge.info(made.op).name} ({opforge.info(made.op).location})")
    assert "parameter 'value': " in text
    assert said in text
    assert "pass one of" in text
    assert isinstance(caught.value, ValueError)
    assert made.seen == []


@pytest.mark.parametrize(
    ("annotation", "value", "text"),
    [
        (Flat, Child(1.0), r"'value': expected Flat, got Child, a subclass(.|\n)*with Child"),
        (Flat, None, r"'value': expected Flat, got NoneType(.|\n)*pass Flat\(...\)"),
        (Flat, 3, "'value': expected Flat, got int"),
        (Flat, {"scale": 1.0}, "'value': expected Flat, got dict"),
        (Flat, (1.0, 3, "n"), "'value': expected Flat, got tuple"),
        (Flat, Point(1), "'value': expected Flat, got Point"),
        (Deep, Deep(Inner(3)), r"'value\.inner\.flat': expected Flat, got int"),
        (tuple[int, float], (1,), "'value': expected a tuple of 2, got a tuple of 1"),
        (tuple[int, float], (1, 2, 3), "'value': expected a tuple of 2, got a tuple of 3"),
        (tuple[int, float], 5, "'value': expected a tuple of 2, got int"),
    ],
    ids=str,
)
def test_something_other_than_the_record_is_refused(annotation, value, text, echo):
    made = echo(annotation)
    with pytest.raises(WrongArgument, match=f"parameter {text}") as caught:
        made.op(X, value)
    info = opforge.info(made.op)
    assert str(caught.value).startswith(f"{info.name} ({info.location})")
    assert isinstance(caught.value, TypeError)


def test_a_device_by_its_name_is_a_device_in_the_body_but_for_the_default(echo):
    made = echo(torch.device, "cpu")
    made.op(X)
    assert made.saw("cpu")
    made.op(X, "meta")
    assert made.saw(torch.device("meta"))


def test_a_list_default_is_not_changed_by_a_body_that_changes_its_argument(op_name):
    seen = []

    @opforge.op(op_name(), fake=["x"])
    def f(x: Tensor, sizes: list[int] = [1, 2]) -> Tensor:  # noqa: B006  # what is tested
        seen.append(list(sizes))
        sizes.append(3)
        return x.clone()

    f(X, [1, 2])
    f(X, [1, 2])
    assert seen == [[1, 2], [1, 2]]


@pytest.mark.parametrize("fake", [None, ["x"], lambda x, *_, **__: torch.empty_like(x)])
def test_a_keyword_may_have_the_name_of_a_helpers_own_parameter(op_name, compiled, fake):
    def body(
        x: torch.Tensor,
        scale: float = 1.0,
        *,
        fn: torch.Tensor,
        generated: torch.Tensor,
        definition: torch.Tensor,
        outputs: torch.Tensor,
    ) -> torch.Tensor:
        return x * scale + fn + generated + definition + outputs

    op = opforge.op(op_name(), fake=fake)(body)
    names = ("fn", "generated", "definition", "outputs")
    given = {name: torch.full((2,), float(at)) for at, name in enumerate(names)}
    expected = torch.full((2,), 7.0)
    assert torch.equal(op(torch.ones(2), **given), expected)
    assert torch.equal(compiled(op)(torch.ones(2), **given), expected)


def test_positional_only_parameters_are_called_by_position(op_name, compiled):
    seen = []

    @opforge.op(op_name(), fake=["x"])
    def f(x: Tensor, n: int, /, point: Point = Point(1)) -> Tensor:  # noqa: B008  # immutable
        seen.append((n, point))
        return x.clone()

    f(X, 4)
    assert same(seen[-1], (4, Point(1)))
    f(X, 4, point=Point(2))
    assert same(seen[-1], (4, Point(2)))
    compiled(lambda x: f(x, 5, Point(3)))(X)
    assert same(seen[-1], (5, Point(3)))
    with pytest.raises(TypeError, match="positional-only"):
        f(X, n=4)


def test_a_default_before_a_required_leaf_survives(op_name, compiled):
    seen = []

    @opforge.op(op_name(), fake=["x"])
    def f(x: Tensor, config: KeywordOnly, n: int = 7, *, last: str) -> Tensor:
        seen.append((config, n, last))
        return x.clone()

    f(X, KeywordOnly(late=1), last="z")
    assert same(seen[-1], (KeywordOnly(late=1), 7, "z"))
    compiled(lambda x: f(x, KeywordOnly(late=2), last="y"))(X)
    assert same(seen[-1], (KeywordOnly(late=2), 7, "y"))


def test_a_parameter_may_be_called_like_a_builtin(op_name):
    source = """
def f(x: Tensor, type: float, len: Flat, tuple: tuple_[int, int], object: tuple_[int, ...],
      isinstance: list[Color], list: list[Optional[Tensor]]) -> tuple_[Tensor, ...]:
    numbers = tuple[0] + tuple[1] + object[0] + object[1]
    return (x * type * len.scale + numbers + (isinstance[0] is Color.RED),)
"""
    op = opforge.op(op_name())(run_source(source)["f"])
    for x in (X, X.clone().requires_grad_()):
        (got,) = op(x, 2.0, Flat(3.0), (1, 2), (3, 4), [Color.RED], [None, X])
        assert torch.equal(got, X * 6 + 11)


@pytest.mark.parametrize("word", ["fn", "new", "fields", "kernel", "Flat", "flat_out", "tracing"])
def test_a_record_may_be_called_like_something_in_generated_code(word, op_name):
    source = f"""
def f(x: Tensor_, {word}: Flat_, other: Optional[Slotted]) -> Tensor_:
    assert type({word}) is Flat_ and type(other) is Slotted
    return x * {word}.scale * other.scale
"""

    def setup_context(ctx, inputs, output):
        ctx.scale = inputs[1].scale * inputs[2].scale

    def backward(ctx, grad):
        return grad * ctx.scale, None, None

    options = {"backward": backward, "setup_context": setup_context}
    op = opforge.op(op_name(), **options)(run_source(source)["f"])
    assert torch.equal(op(X, Flat(2.0), Slotted(3.0)), X * 6)
    leaf = X.clone().requires_grad_()
    op(x=leaf, **{word: Flat(2.0)}, other=Slotted(3.0)).sum().backward()
    assert torch.equal(leaf.grad, torch.full_like(X, 6.0))


def run_source(source):
    """A module's names after running text; `Flat_` and `Tensor_` can be named beside parameters."""
    space = {
        "Color": Color,
        "Flat": Flat,
        "Flat_": Flat,
        "Optional": Optional,
        "Slotted": Slotted,
        "Tensor": Tensor,
        "Tensor_": Tensor,
        "tuple_": tuple,
        "__name__": __name__,
    }
    exec(source, space)
    return space


def test_symbolic_ints_in_a_record_stay_symbolic_in_a_compiled_function(op_name, compiled):
    seen = []

    @opforge.op(op_name(), fake=["x"])
    def f(x: Tensor, pair: tuple[int, int], flat: Flat) -> Tensor:
        seen.append((pair, flat.rows))
        return x.clone()

    run = compiled(lambda x: f(x, (x.shape[0], x.shape[0] + 1), Flat(1.0, x.shape[0] * 2)))
    for n in (3, 5, 8):
        run(torch.ones(n))
        assert seen[-1] == ((n, n + 1), 2 * n)
    assert len(torch._dynamo.eval_frame._debug_get_cache_entry_list(run.__wrapped__.__code__)) == 1


@pytest.mark.parametrize("options", [{}, {"backward": lambda ctx, grad: grad}])
def test_none_for_a_tensor_is_refused_by_name(options, op_name):
    name = op_name()

    @opforge.op(name, **options)
    def op(x: Tensor) -> Tensor:
        return x + 1

    with pytest.raises(WrongArgument, match="parameter 'x': expected a Tensor, got None") as caught:
        op(None)
    assert name in str(caught.value)
