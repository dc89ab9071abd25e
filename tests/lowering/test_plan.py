"""Parameter trees laid flat: schema text, names, call paths, and what `mutates_args` stands for."""

import enum
from typing import NamedTuple

import pytest

from opforge.errors import BadDeclaration, BadOption
from opforge.lowering.plan import lower, mutated_names, select_tensor
from opforge.model import MISSING, Codec, Field, Leaf, Parameter, Record, Signature


class Config:
    """A stand-in for a dataclass; lowering never looks inside."""


class Inner:
    """The same, one level down."""


class Point(NamedTuple):
    x: int
    y: int


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


TENSOR = Leaf("return", "Tensor")


def leaf(name, base="Tensor", default=MISSING, kind="positional-or-keyword", **more):
    return Parameter(name, kind, Leaf(name, base, **more), default)


def record(name, cls, *fields, optional=False, default=MISSING, kind="dataclass"):
    node = Record(name, kind, cls, fields, optional)
    return Parameter(name, "positional-or-keyword", node, default)


def config(**more):
    """cfg: Config(scale: float = 1.0, inner: Inner(weight: Tensor, bias: Tensor | None))."""
    inner = Record(
        "cfg.inner",
        "dataclass",
        Inner,
        (
            Field("weight", Leaf("cfg.inner.weight", "Tensor")),
            Field("bias", Leaf("cfg.inner.bias", "Tensor", optional=True)),
        ),
    )
    scale = Field("scale", Leaf("cfg.scale", "float"), 1.0)
    return record("cfg", Config, scale, Field("inner", inner), **more)


def signature(*parameters, returns=TENSOR):
    return Signature(parameters, returns)


def schema(*parameters, returns=TENSOR, mutates_args=()):
    return lower(signature(*parameters, returns=returns), mutates_args).schema


@pytest.mark.parametrize(
    ("parameter", "text"),
    [
        (leaf("x"), "Tensor x"),
        (leaf("x", optional=True), "Tensor? x"),
        (leaf("x", container="list"), "Tensor[] x"),
        (leaf("x", container="tuple"), "Tensor[] x"),
        (leaf("x", container="list", optional=True), "Tensor[]? x"),
        (leaf("x", container="list", element_optional=True), "Tensor?[] x"),
        (leaf("n", "SymInt"), "SymInt n"),
        (leaf("n", "SymInt", 3), "SymInt n=3"),
        (leaf("n", "SymInt", None, optional=True), "SymInt? n=None"),
        (leaf("s", "float", 1.0), "float s=1.0"),
        (leaf("b", "bool", True), "bool b=True"),
        (leaf("m", "str", "a", codec=Codec(("a", "b"))), 'str m="a"'),
        (leaf("m", "str", Color.RED, codec=Codec((Color.RED,), Color)), 'str m="red"'),
        (leaf("m", "int", Level.LOW, codec=Codec((Level.LOW,), Level)), "int m=1"),
        (leaf("xs", "SymInt", [1, 2], container="list"), "SymInt[] xs=[1, 2]"),
    ],
)
def test_a_leaf_is_one_schema_argument(parameter, text):
    assert schema(parameter) == f"({text}) -> Tensor"


@pytest.mark.parametrize(
    ("returns", "text"),
    [
        (None, "()"),
        (TENSOR, "Tensor"),
        (Leaf("return", "Tensor", optional=True), "Tensor?"),
        (Leaf("return", "Tensor", container="list"), "Tensor[]"),
        (Leaf("return", "Tensor", container="tuple"), "Tensor[]"),
        (Leaf("return", "SymInt"), "SymInt"),
        (Record("return", "tuple", tuple, (Field("0", Leaf("return.0", "Tensor")),)), "Tensor"),
        (
            Record(
                "return",
                "namedtuple",
                Point,
                (Field("x", Leaf("return.x", "Tensor")), Field("y", Leaf("return.y", "float"))),
            ),
            "(Tensor, float)",
        ),
    ],
)
def test_returns_are_written_after_the_arrow(returns, text):
    assert schema(returns=returns) == f"() -> {text}"


def test_a_record_is_its_leaves_under_joined_names():
    text = (
        "(Tensor x, float cfg__scale, "
        "Tensor cfg__inner__weight, Tensor? cfg__inner__bias) -> Tensor"
    )
    assert schema(leaf("x"), config()) == text


def test_leaves_know_their_dotted_paths():
    lowered = lower(signature(config()))
    assert [a.path for a in lowered.arguments] == [
        "cfg.scale",
        "cfg.inner.weight",
        "cfg.inner.bias",
    ]


def test_a_tuple_is_its_elements():
    pair = record(
        "size",
        tuple,
        Field("0", Leaf("size.0", "SymInt")),
        Field("1", Leaf("size.1", "float")),
        kind="tuple",
    )
    assert schema(pair) == "(SymInt size__0, float size__1) -> Tensor"


def test_an_optional_record_has_a_presence_flag_and_optional_leaves():
    text = (
        "(bool cfg__present, float? cfg__scale, "
        "Tensor? cfg__inner__weight, Tensor? cfg__inner__bias) -> Tensor"
    )
    assert schema(config(optional=True)) == text


def test_an_optional_record_that_defaults_to_none_has_every_leaf_default():
    text = (
        "(bool cfg__present=False, float? cfg__scale=None, "
        "Tensor? cfg__inner__weight=None, Tensor? cfg__inner__bias=None) -> Tensor"
    )
    assert schema(config(optional=True, default=None)) == text


def test_an_optional_record_inside_an_optional_record_has_an_optional_flag():
    deep = Record(
        "cfg.deep", "dataclass", Inner, (Field("n", Leaf("cfg.deep.n", "SymInt")),), optional=True
    )
    outer = record("cfg", Config, Field("deep", deep), optional=True)
    text = "(bool cfg__present, bool? cfg__deep__present, SymInt? cfg__deep__n) -> Tensor"
    assert schema(outer) == text


def test_an_optional_list_in_an_absent_record_is_not_made_optional_twice():
    field = Field("n", Leaf("cfg.n", "SymInt", optional=True, container="list"))
    outer = record("cfg", Config, field, optional=True)
    assert schema(outer) == "(bool cfg__present, SymInt[]? cfg__n) -> Tensor"


def test_a_record_without_fields_leaves_no_trace():
    assert schema(leaf("x"), record("cfg", Config)) == "(Tensor x) -> Tensor"


@pytest.mark.parametrize(
    ("parameters", "path"),
    [
        ([leaf("x"), leaf("n", "SymInt", 1)], "direct"),
        ([leaf("x", kind="positional-only")], "lowered"),
        ([leaf("x", kind="keyword-only")], "lowered"),
        ([leaf("x", "str", codec=Codec(("a",)))], "lowered"),
        ([leaf("x", "SymInt", container="tuple")], "lowered"),
        ([leaf("x", "int", codec=Codec((Level.LOW,), Level))], "lowered"),
        ([leaf("x", "str", codec=Codec((Color.RED,), Color))], "flattened"),
        ([config()], "flattened"),
        ([leaf("x", "float", float("inf"))], "flattened"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value[-1].node)[:40],
)
def test_the_path_follows_from_what_must_be_taken_apart(parameters, path):
    assert lower(signature(*parameters)).path == path


@pytest.mark.parametrize(
    ("returns", "path"),
    [
        (None, "direct"),
        (Leaf("return", "Tensor", container="list"), "direct"),
        (Leaf("return", "Tensor", container="tuple"), "flattened"),
        (
            Record(
                "return",
                "tuple",
                tuple,
                (Field("0", Leaf("return.0", "Tensor")), Field("1", Leaf("return.1", "Tensor"))),
            ),
            "direct",
        ),
        (Record("return", "tuple", tuple, (Field("0", Leaf("return.0", "Tensor")),)), "flattened"),
        (
            Record("return", "namedtuple", Point, (Field("x", Leaf("return.x", "Tensor")),)),
            "flattened",
        ),
    ],
)
def test_the_path_follows_from_what_must_be_put_together(returns, path):
    assert lower(signature(leaf("x"), returns=returns)).path == path


def test_a_required_leaf_behind_a_default_takes_the_default_out_of_the_schema():
    lowered = lower(signature(leaf("x"), config()))
    assert "float cfg__scale," in lowered.schema
    (note,) = lowered.notes
    assert note.startswith("the callable supplies the default of cfg.scale")
    assert "precede a required argument" in note


def test_a_default_that_nothing_required_follows_stays_in_the_schema():
    cfg = record("cfg", Config, Field("scale", Leaf("cfg.scale", "float"), 1.0))
    lowered = lower(signature(leaf("x"), cfg))
    assert lowered.schema == "(Tensor x, float cfg__scale=1.0) -> Tensor"
    assert lowered.notes == ()


def test_a_required_keyword_only_argument_after_a_default_follows_a_star():
    text = "(Tensor x, float s=1.0, *, Tensor w, float e=2.0) -> Tensor"
    parameters = (
        leaf("x"),
        leaf("s", "float", 1.0),
        leaf("w", kind="keyword-only"),
        leaf("e", "float", 2.0, kind="keyword-only"),
    )
    assert schema(*parameters) == text
    assert lower(signature(*parameters)).path == "lowered"


def test_a_default_that_cannot_be_expressed_is_noted():
    (note,) = lower(signature(leaf("x", "float", float("nan")))).notes
    assert note == "the callable supplies the default of x, which a schema cannot express"


def test_a_parameter_and_a_field_that_lower_to_one_name_are_both_named():
    cfg = record("cfg", Config, Field("scale", Leaf("cfg.scale", "float")))
    with pytest.raises(BadDeclaration) as caught:
        lower(signature(leaf("cfg__scale", "float"), cfg))
    assert "'cfg__scale' and 'cfg.scale' both lower to 'cfg__scale'" in str(caught.value)
    assert "rename one of them" in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_two_fields_that_lower_to_one_name_are_both_named():
    inner = Record("a.b", "dataclass", Inner, (Field("c", Leaf("a.b.c", "float")),))
    a = record("a", Config, Field("b", inner), Field("b__c", Leaf("a.b__c", "float")))
    with pytest.raises(BadDeclaration, match=r"'a\.b\.c' and 'a\.b__c' both lower to 'a__b__c'"):
        lower(signature(a))


def test_a_field_called_present_collides_with_the_presence_flag():
    cfg = record("cfg", Config, Field("present", Leaf("cfg.present", "bool")), optional=True)
    with pytest.raises(BadDeclaration, match="both lower to 'cfg__present'"):
        lower(signature(cfg))


def test_a_field_called_present_is_fine_where_there_is_no_flag():
    cfg = record("cfg", Config, Field("present", Leaf("cfg.present", "bool")))
    assert schema(cfg) == "(bool cfg__present) -> Tensor"


def test_names_of_generated_code_are_refused():
    with pytest.raises(BadDeclaration, match="'_of_' are reserved for generated code"):
        lower(signature(leaf("_of_x")))


def test_a_record_whose_name_makes_its_leaves_look_generated_is_refused():
    cfg = record("_of_cfg", Config, Field("n", Leaf("_of_cfg.n", "SymInt")))
    with pytest.raises(BadDeclaration, match="reserved for generated code"):
        lower(signature(cfg))


EVERY_SPELLING = [
    (["x"], {"x"}),
    (("x",), {"x"}),
    ({"x"}, {"x"}),
    ({"x": None}, {"x"}),
    (["cfg"], {"cfg__inner__weight", "cfg__inner__bias"}),
    (["cfg.inner"], {"cfg__inner__weight", "cfg__inner__bias"}),
    (["cfg__inner"], {"cfg__inner__weight", "cfg__inner__bias"}),
    (["cfg.inner.weight"], {"cfg__inner__weight"}),
    (["cfg__inner__weight"], {"cfg__inner__weight"}),
    (["x", "cfg.inner.bias"], {"x", "cfg__inner__bias"}),
    (["x", "x"], {"x"}),
    ("unknown", {"x", "cfg__inner__weight", "cfg__inner__bias", "xs"}),
    ([], set()),
]


@pytest.mark.parametrize(("mutates_args", "names"), EVERY_SPELLING)
def test_mutates_args_takes_a_parameter_a_record_a_leaf_or_a_path(mutates_args, names):
    parameters = (leaf("x"), config(), leaf("n", "SymInt"), leaf("xs", container="list"))
    lowered = lower(signature(*parameters), mutates_args)
    assert {a.name for a in lowered.mutated} == names
    assert mutated_names(lowered.signature, lowered.arguments, mutates_args) == names


def test_mutates_args_takes_a_generator():
    lowered = lower(signature(leaf("x"), leaf("y")), (name for name in ["x", "y"]))
    assert [a.name for a in lowered.mutated] == ["x", "y"]


def test_mutated_arguments_are_marked_in_the_schema():
    text = schema(
        leaf("n", "SymInt"),
        leaf("x"),
        leaf("y", optional=True),
        leaf("zs", container="list"),
        returns=None,
        mutates_args=["x", "y", "zs"],
    )
    assert text == "(SymInt n, Tensor(a1!) x, Tensor(a2!)? y, Tensor(a3!)[] zs) -> ()"


@pytest.mark.parametrize("name", ["y", "cfg.innr", "cfg__scalee", "", "cfg."])
def test_an_unknown_name_in_mutates_args_is_refused_with_the_valid_ones(name):
    with pytest.raises(BadOption) as caught:
        lower(signature(leaf("x"), config()), [name])
    text = str(caught.value)
    assert f"mutates_args names {name!r}, which does not match any parameter" in text
    assert "valid names: cfg, x, cfg.inner.weight, cfg.inner.bias" in text
    assert isinstance(caught.value, ValueError)


def test_a_misspelt_name_in_mutates_args_is_refused_with_a_close_one():
    with pytest.raises(BadOption, match="did you mean 'output'"):
        lower(signature(leaf("x"), leaf("output")), ["ouput"])


@pytest.mark.parametrize("name", ["n", "cfg.scale", "cfg__scale"])
def test_a_name_in_mutates_args_that_holds_no_tensor_is_refused(name):
    with pytest.raises(BadOption) as caught:
        lower(signature(leaf("x"), leaf("n", "SymInt"), config()), [name])
    text = str(caught.value)
    assert f"mutates_args names {name!r}, which holds no tensor" in text
    assert "valid names: cfg, x," in text


def test_mutates_args_as_a_bare_string_is_refused_with_a_list_as_the_fix():
    with pytest.raises(BadOption, match=r"mutates_args='x' is a string(.|\n)*mutates_args=\['x'\]"):
        lower(signature(leaf("x")), "x")


def test_a_name_in_mutates_args_of_an_op_without_tensors_is_refused():
    with pytest.raises(BadOption, match="valid names: none, the op takes no tensors"):
        lower(signature(leaf("n", "SymInt")), ["x"])


def test_a_parameter_with_double_underscores_is_not_a_path():
    lowered = lower(signature(leaf("cfg__x"), leaf("y")), ["cfg__x"])
    assert [a.name for a in lowered.mutated] == ["cfg__x"]


def test_one_tensor_can_be_chosen_by_name_or_path():
    lowered = lower(signature(leaf("x"), config()))
    for name in ("cfg.inner.weight", "cfg__inner__weight"):
        assert select_tensor(lowered, name, "fake").path == "cfg.inner.weight"


def test_a_record_is_not_one_tensor():
    lowered = lower(signature(config()))
    with pytest.raises(BadOption, match="fake names 'cfg', which holds 2 tensors") as caught:
        select_tensor(lowered, "cfg", "fake")
    assert "cfg.inner.weight, cfg.inner.bias" in caught.value.fix
