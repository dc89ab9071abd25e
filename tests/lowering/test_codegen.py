"""Generated code: what it looks like, and that flattening and rebuilding undo each other."""

import dataclasses
import enum
from typing import NamedTuple

import pytest

from opforge.errors import BadOption
from opforge.lowering.choices import ChoiceValues
from opforge.lowering.codegen import (
    FunctionSource,
    argument_list,
    emit_arguments,
    emit_flat_result,
    emit_result,
    emit_wrapper,
    pass_on,
)
from opforge.lowering.plan import lower
from opforge.model import MISSING, Codec, Field, Leaf, Parameter, Record, Signature, leaves_of


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Shape(enum.Enum):
    SQUARE = (1, 1)
    WIDE = (2, 1)


@dataclasses.dataclass(frozen=True)
class Config:
    scale: float
    causal: bool


@dataclasses.dataclass(frozen=True)
class Outer:
    config: Config
    color: Color


class Point(NamedTuple):
    x: int
    y: int


TENSOR = Leaf("return", "Tensor")


def config(path, **more):
    fields = (
        Field("scale", Leaf(f"{path}.scale", "float")),
        Field("causal", Leaf(f"{path}.causal", "bool")),
    )
    return Record(path, "dataclass", Config, fields, **more)


def parameter(node, default=MISSING, kind="positional-or-keyword"):
    return Parameter(node.path, kind, node, default)


def color(path, cls=Color, by="value", **more):
    return Leaf(path, "str", codec=Codec(tuple(cls), cls, by), **more)


class Op:
    """Generated flatten and rebuild around a recording overload, without torch."""

    def __init__(self, *parameters, returns=TENSOR):
        self.lowered = lower(Signature(parameters, returns))
        self.flat = None
        self.result = "result"
        self.namespace = {
            "_of_object": object,
            "_of_new_tuple": tuple.__new__,
            "_of_wrong_type": self.wrong_type,
            "_of_wrong_length": self.wrong_length,
            "_of_overload": None,
            "_of_call": self.overload,
            "_of_tracing": lambda: False,
            "_of_RuntimeError": RuntimeError,
            "_of_type": type,
            "_of_len": len,
            "_of_isinstance": isinstance,
            "_of_tuple": tuple,
            "_of_list": list,
            "_of_sequences": (tuple, list),
            "_of_as_list": lambda path, value: list(value),
        }
        leaves = [leaf for p in parameters for leaf in leaves_of(p.node) if leaf.codec]
        codecs = {
            leaf.path: ChoiceValues(leaf.codec, leaf.path, "ns::op", "f.py:1") for leaf in leaves
        }
        self.source = FunctionSource(self.namespace, codecs)
        emit_wrapper(self.source, self.lowered, "call")
        self.source.add(f"def rebuild({argument_list(self.source, self.lowered.arguments)}):")
        self.source.depth += 1
        arguments = emit_arguments(self.source, self.lowered)
        self.source.add(f"return dict({self.as_keywords(arguments)})")
        exec(self.source.text(), self.namespace)
        self.call, self.rebuild = self.namespace["call"], self.namespace["rebuild"]

    def overload(self, *args, **kwargs):
        self.flat = (args, kwargs)
        return self.result

    def as_keywords(self, arguments):
        names = [p.name for p in self.lowered.signature.parameters]
        self.namespace["_of_zip"] = lambda *args, **kw: {
            **dict(zip(names, args, strict=False)),
            **kw,
        }
        return f"_of_zip({arguments})"

    def wrong_type(self, path, value, wanted):
        raise TypeError(f"{path}: {type(value).__name__} is no {wanted.__name__}")

    def wrong_length(self, path, value, count):
        raise TypeError(f"{path}: {value!r} has not {count}")

    def round_trip(self, *args, **kwargs):
        self.call(*args, **kwargs)
        return self.rebuild(*self.flat[0], **self.flat[1])


def test_the_wrapper_reads_as_the_module_shows_it():
    op = Op(
        parameter(Leaf("q", "Tensor")),
        parameter(config("cfg")),
        parameter(Leaf("mode", "str", codec=Codec(("a", "b"))), "a"),
    )
    wrapper = op.source.text().partition("def rebuild")[0]
    assert wrapper.splitlines() == [
        "def call(q, cfg, mode=_of_default_mode):",
        "    if _of_type(cfg) is not _of_class_Config:",
        "        _of_wrong_type('cfg', cfg, _of_class_Config)",
        "    if _of_tracing():",
        "        _of_flat_out = _of_overload(q, cfg.scale, cfg.causal, mode)",
        "    else:",
        "        try:",
        "            _of_flat_out = _of_call(q, cfg.scale, cfg.causal, mode)",
        "        except _of_RuntimeError as _of_error:",
        "            _of_explain_refusal(_of_error)",
        "            raise",
        "    return _of_flat_out",
    ]


def test_rebuilding_is_straight_line_code():
    op = Op(parameter(Leaf("q", "Tensor")), parameter(config("cfg")))
    first, *lines = op.source.text().partition("def rebuild")[2].splitlines()
    assert first == "(q, cfg__scale, cfg__causal):"
    assert all(line.startswith("    ") and line[4] != " " for line in lines)
    assert not any(word in line for line in lines for word in ("for ", "bind", "_of_class_Config("))


def test_a_record_reaches_the_overload_as_its_leaves():
    op = Op(parameter(Leaf("q", "Tensor")), parameter(config("cfg")))
    assert op.call("q", Config(2.0, True)) == "result"
    assert op.flat == (("q", 2.0, True), {})


def test_an_absent_record_reaches_the_overload_as_a_false_flag_and_nothing():
    op = Op(parameter(config("cfg", optional=True)))
    op.call(None)
    assert op.flat == ((False, None, None), {})
    op.call(Config(2.0, True))
    assert op.flat == ((True, 2.0, True), {})


@pytest.mark.parametrize(
    ("node", "value"),
    [
        (config("p"), Config(2.0, True)),
        (config("p", optional=True), Config(2.0, True)),
        (config("p", optional=True), None),
        (
            Record(
                "p",
                "dataclass",
                Outer,
                (
                    Field("config", config("p.config", optional=True)),
                    Field("color", color("p.color")),
                ),
            ),
            Outer(Config(1.0, False), Color.BLUE),
        ),
        (
            Record(
                "p",
                "dataclass",
                Outer,
                (
                    Field("config", config("p.config", optional=True)),
                    Field("color", color("p.color")),
                ),
                optional=True,
            ),
            Outer(None, Color.RED),
        ),
        (
            Record(
                "p",
                "namedtuple",
                Point,
                (Field("x", Leaf("p.x", "SymInt")), Field("y", Leaf("p.y", "SymInt"))),
            ),
            Point(1, 2),
        ),
        (Record("p", "tuple", tuple, (Field("0", Leaf("p.0", "SymInt")),)), (1,)),
        (Record("p", "tuple", tuple, ()), ()),
        (Record("p", "tuple", tuple, (), optional=True), ()),
        (Record("p", "tuple", tuple, (), optional=True), None),
        (Record("p", "tuple", tuple, (Field("0", config("p.0")),)), (Config(1.0, True),)),
        (color("p"), Color.RED),
        (color("p", optional=True), None),
        (color("p", Shape, "name"), Shape.WIDE),
        (color("p", container="list"), [Color.RED, Color.BLUE]),
        (color("p", container="tuple"), (Color.RED,)),
        (color("p", container="list", element_optional=True), [Color.RED, None]),
        (color("p", container="list", optional=True), None),
        (color("p", Shape, "name", container="tuple", optional=True), (Shape.WIDE,)),
        (Leaf("p", "SymInt", container="tuple"), (1, 2)),
        (Leaf("p", "SymInt", container="tuple", optional=True), None),
        (Leaf("p", "str", optional=True, codec=Codec(("a",))), None),
    ],
)
def test_rebuilding_gives_back_what_was_taken_apart(node, value):
    got = Op(parameter(node)).round_trip(value)["p"]
    assert got == value
    assert type(got) is type(value)


def test_rebuilding_runs_neither_init_nor_post_init():
    calls = []

    @dataclasses.dataclass(frozen=True)
    class Counted:
        n: int
        double: int = dataclasses.field(init=False)

        def __post_init__(self):
            calls.append(self.n)
            object.__setattr__(self, "double", 2 * self.n)

    fields = (Field("n", Leaf("p.n", "SymInt")), Field("double", Leaf("p.double", "SymInt")))
    op = Op(parameter(Record("p", "dataclass", Counted, fields)))
    assert op.round_trip(Counted(3))["p"] == Counted(3)
    assert calls == [3, 3]


def test_raw_values_of_an_enum_are_accepted():
    op = Op(parameter(color("a")), parameter(color("b", Shape, "name")))
    assert op.round_trip("red", (2, 1)) == {"a": Color.RED, "b": Shape.WIDE}


def test_a_value_outside_an_enum_is_refused_with_the_members():
    op = Op(parameter(color("a")), parameter(color("b", Shape, "name")))
    with pytest.raises(BadOption) as caught:
        op.round_trip("green", Shape.WIDE)
    assert "ns::op (f.py:1), parameter 'a': 'green' is not a value of Color" in str(caught.value)
    assert "pass one of <Color.RED: 'red'>, <Color.BLUE: 'blue'>" in str(caught.value)
    with pytest.raises(BadOption, match="parameter 'b'"):
        op.round_trip(Color.RED, (9, 9))


def test_a_value_outside_a_literal_is_refused_with_the_values():
    op = Op(parameter(Leaf("p", "str", codec=Codec(("a", "b")))))
    with pytest.raises(
        BadOption, match=r"'c' is not a value of Literal(.|\n)*pass one of 'a', 'b'"
    ):
        op.round_trip("c")


def test_an_enum_that_knows_more_values_by_missing_is_asked():
    class Lenient(enum.Enum):
        YES = "yes"

        @classmethod
        def _missing_(cls, value):
            return cls.YES if value in ("y", "true") else None

    node = Leaf("p", "str", codec=Codec(tuple(Lenient), Lenient))
    assert Op(parameter(node)).round_trip("y") == {"p": Lenient.YES}


@pytest.mark.parametrize("value", [None, 3, Point(1, 2), "text"])
def test_a_value_of_another_class_is_refused(value):
    with pytest.raises(TypeError, match=f"cfg: {type(value).__name__} is no Config"):
        Op(parameter(config("cfg"))).call(value)


@pytest.mark.parametrize("value", [(1,), (1, 2, 3), 5, None, "ab"])
def test_a_value_that_is_not_such_a_tuple_is_refused(value):
    fields = (Field("0", Leaf("t.0", "SymInt")), Field("1", Leaf("t.1", "SymInt")))
    with pytest.raises(TypeError, match=r"t: .* has not 2"):
        Op(parameter(Record("t", "tuple", tuple, fields))).call(value)


def test_defaults_are_the_user_s_own_objects():
    default = Config(1.0, False)
    op = Op(parameter(config("cfg"), default))
    assert op.call.__defaults__ == (default,)
    assert op.call.__defaults__[0] is default


def test_a_default_before_a_required_leaf_is_supplied():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Odd:
        first: float = 0.5
        second: int

    fields = (
        Field("first", Leaf("p.first", "float"), 0.5),
        Field("second", Leaf("p.second", "SymInt")),
    )
    op = Op(
        parameter(Leaf("a", "SymInt"), 1),
        parameter(Record("p", "dataclass", Odd, fields), Odd(second=2)),
    )
    op.call()
    assert op.flat == ((1, 0.5, 2), {})


def test_keyword_only_and_positional_only_parameters_keep_their_kind():
    op = Op(
        parameter(Leaf("a", "SymInt"), kind="positional-only"),
        parameter(config("b")),
        parameter(Leaf("c", "SymInt"), 3, kind="keyword-only"),
        parameter(Leaf("d", "SymInt"), kind="keyword-only"),
    )
    assert op.source.text().startswith("def call(a, /, b, *, c=_of_default_c, d):\n")
    expected = {"a": 1, "b": Config(1.0, True), "c": 3, "d": 4}
    assert op.round_trip(1, Config(1.0, True), d=4) == expected
    with pytest.raises(TypeError, match="positional-only"):
        op.call(a=1, b=Config(1.0, True), d=4)
    with pytest.raises(TypeError, match="positional argument"):
        op.call(1, Config(1.0, True), 3, d=4)


def test_all_positional_only_parameters_end_in_a_slash():
    op = Op(parameter(Leaf("a", "SymInt"), kind="positional-only"))
    assert op.source.text().startswith("def call(a, /):\n")


def test_two_classes_with_the_same_name_are_distinguished():
    twin = type("Config", (), {"__slots__": ("scale", "causal")})
    fields = config("b").fields
    op = Op(parameter(config("a")), parameter(Record("b", "dataclass", twin, fields)))
    other = twin()
    other.scale, other.causal = 3.0, False
    got = op.round_trip(Config(1.0, True), other)
    assert type(got["a"]) is Config
    assert type(got["b"]) is twin
    assert got["b"].scale == 3.0


def test_kernels_repeat_schema_defaults():
    source = FunctionSource({}, {})
    lowered = lower(
        Signature(
            (
                parameter(Leaf("x", "Tensor")),
                parameter(Leaf("s", "float"), 2.0),
                parameter(Leaf("w", "Tensor"), kind="keyword-only"),
            ),
            TENSOR,
        )
    )
    assert argument_list(source, lowered.arguments) == "x, s=_of_schema_s, *, w"
    assert source.namespace["_of_schema_s"] == 2.0
    assert pass_on(lowered.arguments) == "x, s, w=w"


def result_of(returns, flat):
    """What the user gets for what the overload returned."""
    op = Op(returns=returns)
    op.result = flat
    return op.call()


def flat_of(returns, value):
    """What the dispatcher gets for what the body returned."""
    lowered = lower(Signature((), returns))
    namespace = Op().namespace
    source = FunctionSource(namespace, {})
    source.add("def flat(_of_out):")
    source.depth += 1
    source.add(f"return {emit_flat_result(source, lowered)}")
    exec(source.text(), namespace)
    return namespace["flat"](value)


def tensor(path):
    return Leaf(path, "Tensor")


PAIR = Record(
    "return", "tuple", tuple, (Field("0", tensor("return.0")), Field("1", tensor("return.1")))
)
ONE = Record("return", "tuple", tuple, (Field("0", tensor("return.0")),))
POINT = Record(
    "return", "namedtuple", Point, (Field("x", tensor("return.x")), Field("y", tensor("return.y")))
)
NESTED = Record(
    "return",
    "dataclass",
    Config,
    (
        Field("scale", tensor("return.scale")),
        Field(
            "causal",
            Record(
                "return.causal",
                "namedtuple",
                Point,
                (Field("x", tensor("return.causal.x")), Field("y", tensor("return.causal.y"))),
            ),
        ),
    ),
)


@pytest.mark.parametrize(
    ("returns", "value", "flat"),
    [
        (TENSOR, "t", "t"),
        (Leaf("return", "Tensor", container="list"), ["t", "u"], ["t", "u"]),
        (Leaf("return", "Tensor", container="tuple"), ("t", "u"), ["t", "u"]),
        (PAIR, ("t", "u"), ("t", "u")),
        (ONE, ("t",), "t"),
        (POINT, Point("t", "u"), ("t", "u")),
        (NESTED, Config("t", Point("u", "v")), ("t", "u", "v")),
        (None, None, None),
    ],
    ids=["tensor", "list", "tuple...", "pair", "one", "namedtuple", "nested", "none"],
)
def test_results_are_laid_flat_and_rebuilt(returns, value, flat):
    assert flat_of(returns, value) == flat
    rebuilt = result_of(returns, flat)
    assert rebuilt == value
    assert type(rebuilt) is type(value)


def test_a_tuple_where_a_list_is_promised_becomes_a_list():
    assert flat_of(Leaf("return", "Tensor", container="list"), ("t", "u")) == ["t", "u"]


def test_the_result_of_a_wrong_class_is_refused():
    with pytest.raises(TypeError, match="return: tuple is no Point"):
        flat_of(POINT, ("t", "u"))
    with pytest.raises(TypeError, match=r"return: .* has not 2"):
        flat_of(PAIR, ("t",))


def test_emit_result_reads_the_flat_result_once():
    source = FunctionSource({}, {})
    emit_result(source, lower(Signature((), POINT)), "call()")
    assert source.text().count("call()") == 1


def test_an_object_keeps_its_name_and_another_gets_its_own():
    source = FunctionSource({}, {})
    first, second = object(), object()
    assert source.name("x", first) == "_of_x"
    assert source.name("x", first) == "_of_x"
    assert source.name("x", second) == "_of_x_2"
