"""Defaults: what a schema can say of them, what it cannot, and what does not fit."""

import dataclasses
import enum
import math
import subprocess
import sys
from typing import NamedTuple

import pytest

from opforge.errors import BadSignature
from opforge.lowering.defaults import flatten_default, schema_text
from opforge.model import MISSING, Codec, Field, Leaf, Record
from support.processes import environment


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Shape(enum.Enum):
    SQUARE = (1, 1)
    WIDE = (2, 1)


@dataclasses.dataclass(frozen=True)
class Inner:
    eps: float = 1e-5


@dataclasses.dataclass(frozen=True)
class Config:
    scale: float
    inner: Inner
    maybe: Inner | None = None


class Point(NamedTuple):
    x: int
    y: int = 7


def inner(path, **more):
    return Record(
        path, "dataclass", Inner, (Field("eps", Leaf(f"{path}.eps", "float"), 1e-5),), **more
    )


CONFIG = Record(
    "cfg",
    "dataclass",
    Config,
    (
        Field("scale", Leaf("cfg.scale", "float")),
        Field("inner", inner("cfg.inner")),
        Field("maybe", inner("cfg.maybe", optional=True), None),
    ),
)
POINT = Record(
    "p",
    "namedtuple",
    Point,
    (Field("x", Leaf("p.x", "SymInt")), Field("y", Leaf("p.y", "SymInt"), 7)),
)
PAIR = Record(
    "t", "tuple", tuple, (Field("0", Leaf("t.0", "SymInt")), Field("1", Leaf("t.1", "float")))
)


def flat(node, value):
    return flatten_default(node, value, "p")


@pytest.mark.parametrize(
    ("base", "value", "text"),
    [
        ("SymInt", 3, "3"),
        ("SymInt", -3, "-3"),
        ("int", 2**63 - 1, "9223372036854775807"),
        ("int", -(2**63), "-9223372036854775808"),
        ("float", 1.0, "1.0"),
        ("float", 1e-5, "1e-05"),
        ("float", 1e22, "1e+22"),
        ("float", -2.5, "-2.5"),
        ("float", 0.1, "0.1"),
        ("bool", True, "True"),
        ("bool", False, "False"),
        ("Scalar", 1, "1"),
        ("Scalar", 1.5, "1.5"),
        ("Scalar", True, "True"),
        ("str", "plain", '"plain"'),
        ("str", "", '""'),
        ("str", "it's", '"it\'s"'),
        ("str", 'say "hi"', '"say \\"hi\\""'),
        ("str", "back\\slash", '"back\\\\slash"'),
        ("str", "two\nlines\t", '"two\\nlines\\t"'),
        ("str", "größe", '"größe"'),
    ],
)
def test_a_scalar_is_written_in_schema_language(base, value, text):
    assert schema_text(Leaf("p", base), value) == text


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -0.0])
def test_a_float_that_a_schema_cannot_express_is_not_written(value):
    assert schema_text(Leaf("p", "float"), value) is None
    assert schema_text(Leaf("p", "Scalar"), value) is None
    assert schema_text(Leaf("p", "float", container="list"), [1.0, value]) is None


def test_a_float_too_small_for_torch_to_parse_is_not_written():
    # std::stod raises on numbers below the smallest normal one.
    assert schema_text(Leaf("p", "float"), 5e-324) is None
    assert schema_text(Leaf("p", "float"), sys.float_info.min) is not None


def test_a_complex_number_is_not_written():
    assert schema_text(Leaf("p", "Scalar"), 1 + 2j) is None


def test_a_control_character_is_not_written():
    assert schema_text(Leaf("p", "str"), "bell\x07") is None


@pytest.mark.parametrize(
    ("base", "value", "text"),
    [
        ("SymInt", [], "[]"),
        ("SymInt", [1, -2], "[1, -2]"),
        ("float", [1.0, 0.5], "[1.0, 0.5]"),
        ("bool", [True, False], "[True, False]"),
    ],
)
def test_a_list_is_written_with_its_elements(base, value, text):
    assert schema_text(Leaf("p", base, container="list"), value) == text
    assert schema_text(Leaf("p", base, container="tuple"), value) == text


@pytest.mark.parametrize(
    "leaf",
    [
        Leaf("p", "SymInt", container="list", optional=True),
        Leaf("p", "SymInt", container="list", element_optional=True),
        Leaf("p", "str", container="list"),
        Leaf("p", "ScalarType", container="list"),
    ],
    ids=lambda leaf: leaf.schema_type(),
)
def test_a_list_that_torch_cannot_parse_is_not_written(leaf):
    assert schema_text(leaf, []) is None


def test_none_is_written_for_every_type():
    for base in ("Tensor", "SymInt", "str", "ScalarType"):
        assert schema_text(Leaf("p", base, optional=True), None) == "None"


@pytest.mark.parametrize(
    ("leaf", "value", "encoded"),
    [
        (Leaf("p", "float"), 2, 2.0),
        (Leaf("p", "SymInt", container="list"), (1, 2), [1, 2]),
        (Leaf("p", "float", container="tuple"), (1, 2), [1.0, 2.0]),
        (Leaf("p", "Tensor", optional=True), None, None),
        (Leaf("p", "Tensor", container="list", element_optional=True), [None], [None]),
        (Leaf("p", "str", codec=Codec(("a", "b"))), "b", "b"),
        (Leaf("p", "str", codec=Codec(tuple(Color), Color)), Color.BLUE, "blue"),
        (Leaf("p", "str", codec=Codec(tuple(Color), Color)), "blue", "blue"),
        (Leaf("p", "int", codec=Codec(tuple(Level), Level)), Level.HIGH, 2),
        (Leaf("p", "int", codec=Codec(tuple(Level), Level)), 2, 2),
        (Leaf("p", "str", codec=Codec(tuple(Shape), Shape, "name")), Shape.WIDE, "WIDE"),
        (Leaf("p", "str", codec=Codec(tuple(Shape), Shape, "name")), (2, 1), "WIDE"),
        (
            Leaf("p", "str", container="list", codec=Codec(tuple(Color), Color)),
            [Color.RED, Color.BLUE],
            ["red", "blue"],
        ),
    ],
)
def test_a_default_is_encoded_as_the_schema_carries_it(leaf, value, encoded):
    (got,) = flat(leaf, value)
    assert got == encoded
    assert type(got) is type(encoded)


def test_no_default_stays_no_default():
    assert flat(Leaf("p", "float"), MISSING) == [MISSING]


def test_a_dataclass_instance_gives_each_leaf_its_default():
    default = Config(2.0, Inner(0.5), Inner(0.25))
    assert flat(CONFIG, default) == [2.0, 0.5, True, 0.25]


def test_an_absent_record_in_a_dataclass_instance_has_no_values():
    assert flat(CONFIG, Config(2.0, Inner(0.5))) == [2.0, 0.5, False, None]


def test_field_defaults_count_where_the_parameter_has_none():
    assert flat(CONFIG, MISSING) == [MISSING, 1e-5, False, None]
    assert flat(POINT, MISSING) == [MISSING, 7]


def test_a_named_tuple_or_tuple_gives_each_leaf_its_default():
    assert flat(POINT, Point(1)) == [1, 7]
    assert flat(PAIR, (1, 2)) == [1, 2.0]


def test_an_optional_record_without_a_default_has_a_flag_without_one():
    assert flat(dataclasses.replace(POINT, optional=True), MISSING)[0] is MISSING


def test_none_for_an_optional_record_clears_flag_and_leaves():
    assert flat(dataclasses.replace(CONFIG, optional=True), None) == [False, None, None, None, None]


@pytest.mark.parametrize(
    ("node", "value", "wanted"),
    [
        (Leaf("p", "SymInt"), "x", "SymInt"),
        (Leaf("p", "SymInt"), 1.5, "SymInt"),
        (Leaf("p", "SymInt"), 2**63, "SymInt"),
        (Leaf("p", "SymInt"), None, "SymInt"),
        (Leaf("p", "float"), "1", "float"),
        (Leaf("p", "float"), 1j, "float"),
        (Leaf("p", "bool"), 1, "bool"),
        (Leaf("p", "str"), 1, "str"),
        (Leaf("p", "str"), b"x", "str"),
        (Leaf("p", "Tensor"), 1.0, "Tensor"),
        (Leaf("p", "ScalarType"), "float32", "ScalarType"),
        (Leaf("p", "SymInt", container="list"), 3, "SymInt[]"),
        (Leaf("p", "SymInt", container="list"), ["x"], "SymInt"),
        (Leaf("p", "str", codec=Codec(("a", "b"))), "c", "one of 'a', 'b'"),
        (Leaf("p", "int", codec=Codec((1, 2))), True, "one of 1, 2"),
        (Leaf("p", "bool", codec=Codec((True,))), 1, "one of True"),
        (Leaf("p", "str", codec=Codec(tuple(Color), Color)), "green", "one of <Color.RED"),
        (CONFIG, None, "Config"),
        (CONFIG, Inner(), "Config"),
        (POINT, (1, 2), "Point"),
        (PAIR, (1,), "a tuple of 2"),
        (PAIR, 3, "a tuple of 2"),
        (CONFIG, Config("x", Inner()), "float"),
    ],
)
def test_a_default_that_is_not_representable_is_refused(node, value, wanted):
    with pytest.raises(BadSignature) as caught:
        flat(node, value)
    text = str(caught.value)
    assert text.startswith("parameter 'p': the default ")
    assert f"cannot be represented as {wanted}" in text
    assert f"found: {type(value).__name__}" in text or isinstance(value, (list, Config))
    assert "fix: use " in text
    assert isinstance(caught.value, TypeError)


def test_a_tensor_default_is_refused_with_how_to_write_it():
    with pytest.raises(
        BadSignature, match=r"Optional\[Tensor\] = None, and make the tensor in the body"
    ):
        flat(Leaf("p", "Tensor"), object())


SUBCLASS = """
import enum
from opforge.lowering.defaults import flatten_default
from opforge.model import Leaf

class Level(enum.IntEnum):
    LOW = 1

(value,) = flatten_default(Leaf("p", "SymInt"), Level.LOW, "p")
print(int(value))
"""


def test_an_int_of_a_subclass_as_a_default_is_encoded_at_once():
    # In a fresh process: looking such an int up in a range once took forever.
    run = subprocess.run(
        [sys.executable, "-c", SUBCLASS],
        capture_output=True,
        text=True,
        timeout=15,
        check=True,
        env=environment(),
    )
    assert run.stdout.strip() == "1"
