"""From annotations to the parameter tree, and the refusal of other annotations."""

# The old spellings are tested, too.
# ruff: noqa: PYI061, RUF041, UP006, UP007, UP045

import collections
import collections.abc
import dataclasses
import enum
import importlib
import inspect
import itertools
import subprocess
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    NewType,
    Optional,
    TypeAlias,
    TypeVar,
    Union,
)

import pytest
import torch
from torch import Tensor

import opforge
from opforge.analysis.signature.annotations import user_scope
from opforge.analysis.signature.parameter_tree import read_signature
from opforge.errors import (
    BadSignature,
)
from opforge.model import MISSING, Codec, Field, Leaf, Record
from support.processes import environment, python

numbers = itertools.count()


def read(annotation):
    """The tree of one parameter."""

    def fn(p):
        return None

    fn.__annotations__ = {"p": annotation, "return": None}
    (parameter,) = read_signature(fn, {}).parameters
    return parameter.node


def read_return(annotation):
    def fn():
        return None

    fn.__annotations__ = {"return": annotation}
    return read_signature(fn, {}).returns


@pytest.fixture
def load(tmp_path, monkeypatch):
    """A callable that imports source text as a new module."""

    def load_source(source):
        name = f"signature_sample_{next(numbers)}"
        (tmp_path / f"{name}.py").write_text(source)
        spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load_source


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10


class Shape(enum.Enum):
    SQUARE = (1, 1)
    WIDE = (2, 1)


@pytest.mark.parametrize(
    ("annotation", "base"),
    [
        (Tensor, "Tensor"),
        (torch.nn.Parameter, "Tensor"),
        (int, "SymInt"),
        (torch.SymInt, "SymInt"),
        (float, "float"),
        (bool, "bool"),
        (str, "str"),
        (torch.types.Number, "Scalar"),
        (torch.dtype, "ScalarType"),
        (torch.device, "Device"),
        (torch.layout, "Layout"),
        (torch.memory_format, "MemoryFormat"),
    ],
)
def test_a_type_that_torch_knows_is_a_leaf(annotation, base):
    assert read(annotation) == Leaf("p", base)
    assert read(Optional[annotation]) == Leaf("p", base, optional=True)
    if base not in ("ScalarType", "Layout", "MemoryFormat"):
        assert read(list[annotation]) == Leaf("p", base, container="list")


def infer_schema_accepts():
    table = torch._library.infer_schema.SUPPORTED_PARAM_TYPES
    return sorted(((str(kind), kind, text) for kind, text in table.items()), key=lambda row: row[0])


@pytest.mark.parametrize(
    ("annotation", "text"), [row[1:] for row in infer_schema_accepts()], ids=str
)
def test_everything_that_infer_schema_accepts_has_the_same_schema_type(annotation, text):
    leaf = read(annotation)
    assert leaf.schema_type().replace("SymInt", "int") == text.replace("SymInt", "int")


@pytest.mark.parametrize(
    ("annotation", "leaf"),
    [
        (Sequence[int], Leaf("p", "SymInt", container="list")),
        (collections.abc.Sequence[Tensor], Leaf("p", "Tensor", container="list")),
        (typing.List[float], Leaf("p", "float", container="list")),
        (int | None, Leaf("p", "SymInt", optional=True)),
        (None | int, Leaf("p", "SymInt", optional=True)),
        (Union[None, Tensor], Leaf("p", "Tensor", optional=True)),
        (Optional[torch.types.Number], Leaf("p", "Scalar", optional=True)),
        (Optional[list[int]], Leaf("p", "SymInt", optional=True, container="list")),
        (list[Optional[Tensor]], Leaf("p", "Tensor", container="list", element_optional=True)),
        (
            list[Tensor | None] | None,
            Leaf("p", "Tensor", optional=True, container="list", element_optional=True),
        ),
        (tuple[int, ...], Leaf("p", "SymInt", container="tuple")),
        (tuple[Tensor, ...] | None, Leaf("p", "Tensor", optional=True, container="tuple")),
        (typing.Tuple[float, ...], Leaf("p", "float", container="tuple")),
    ],
    ids=str,
)
def test_a_list_or_an_optional_is_a_leaf(annotation, leaf):
    assert read(annotation) == leaf


@pytest.mark.parametrize(
    ("annotation", "leaf"),
    [
        (Literal["a", "b"], Leaf("p", "str", codec=Codec(("a", "b")))),
        (Literal[1, 2], Leaf("p", "int", codec=Codec((1, 2)))),
        (Literal[True], Leaf("p", "bool", codec=Codec((True,)))),
        (Literal["a", None], Leaf("p", "str", optional=True, codec=Codec(("a",)))),
        (Literal[1, None], Leaf("p", "int", optional=True, codec=Codec((1,)))),
        (Literal[False, None], Leaf("p", "bool", optional=True, codec=Codec((False,)))),
        (Optional[Literal["a"]], Leaf("p", "str", optional=True, codec=Codec(("a",)))),
        (Literal["a"] | None, Leaf("p", "str", optional=True, codec=Codec(("a",)))),
        (Literal[Literal["a"], "b"], Leaf("p", "str", codec=Codec(("a", "b")))),
        (list[Literal["a", "b"]], Leaf("p", "str", container="list", codec=Codec(("a", "b")))),
    ],
    ids=str,
)
def test_a_literal_is_a_leaf_with_its_values(annotation, leaf):
    assert read(annotation) == leaf


@pytest.mark.parametrize(
    ("cls", "base", "by"),
    [(Color, "str", "value"), (Level, "int", "value"), (Shape, "str", "name")],
)
def test_an_enum_is_a_leaf_with_its_members(cls, base, by):
    assert read(cls) == Leaf("p", base, codec=Codec(tuple(cls), cls, by))
    assert read(Optional[cls]) == Leaf("p", base, optional=True, codec=Codec(tuple(cls), cls, by))
    assert read(list[cls]) == Leaf("p", base, container="list", codec=Codec(tuple(cls), cls, by))


def test_an_enum_of_bools_travels_by_name():
    class Switch(enum.Enum):
        ON = True
        OFF = False

    assert read(Switch).codec.by == "name"


def test_an_enum_of_mixed_values_travels_by_name():
    class Mixed(enum.Enum):
        ONE = 1
        TWO = "two"

    assert read(Mixed).codec.by == "name"


def test_an_enum_of_ints_too_large_for_a_schema_travels_by_name():
    class Large(enum.Enum):
        HUGE = 2**63

    assert read(Large).codec.by == "name"


ENUM_OF_ENUMS = """
import enum, torch
from opforge.analysis.signature.parameter_tree import read_signature

class Level(enum.IntEnum):
    LOW = 1

class Named(enum.Enum):
    FIRST = Level.LOW

def f(p: Named) -> None: ...

print(read_signature(f, {}).parameters[0].node.base)
"""


def test_an_enum_whose_values_are_members_of_an_int_enum_is_read_at_once():
    # In a fresh process: a value of an int subclass once took forever.
    assert run_python(ENUM_OF_ENUMS) == "int"


def run_python(code):
    run = subprocess.run(
        [python(), "-c", code],
        capture_output=True,
        text=True,
        timeout=15,
        check=True,
        env=environment(),
    )
    return run.stdout.strip()


@dataclass(frozen=True)
class Inner:
    weight: Tensor
    eps: float = 1e-5


@dataclass(frozen=True)
class Outer:
    inner: Inner
    causal: bool
    maybe: Inner | None = None


class Point(NamedTuple):
    x: int
    y: float = 0.5


def test_a_frozen_dataclass_is_a_record_of_its_fields():
    fields = (
        Field("weight", Leaf("p.weight", "Tensor")),
        Field("eps", Leaf("p.eps", "float"), 1e-5),
    )
    assert read(Inner) == Record("p", "dataclass", Inner, fields)


def test_dataclasses_nest():
    outer = read(Outer)
    inner, causal, maybe = (f.node for f in outer.fields)
    assert [f.node.path for f in inner.fields] == ["p.inner.weight", "p.inner.eps"]
    assert causal == Leaf("p.causal", "bool")
    assert maybe.optional
    assert maybe.present_path == "p.maybe.present"
    assert outer.fields[2].default is None


def test_an_optional_dataclass_is_an_optional_record():
    assert read(Optional[Inner]) == dataclasses.replace(read(Inner), optional=True)


def test_a_dataclass_has_the_fields_it_inherits():
    @dataclass(frozen=True)
    class Child(Inner):
        extra: int = 3

    assert [f.name for f in read(Child).fields] == ["weight", "eps", "extra"]


def test_a_dataclass_of_any_make_is_a_record():
    @dataclass(frozen=True, slots=True, kw_only=True, order=True)
    class Odd:
        last: int = 1
        first: float

    assert [f.name for f in read(Odd).fields] == ["last", "first"]


def test_fields_that_init_does_not_take_are_fields_too():
    @dataclass(frozen=True)
    class Derived:
        n: int
        square: int = field(init=False)

    assert [f.name for f in read(Derived).fields] == ["n", "square"]


def test_class_variables_and_init_variables_are_not_fields():
    @dataclass(frozen=True)
    class Config:
        n: int
        shared: ClassVar[dict[str, int]] = {}
        seed: InitVar[object] = None

    assert [f.name for f in read(Config).fields] == ["n"]


def test_a_factory_gives_a_default_only_for_an_empty_list_or_tuple():
    @dataclass(frozen=True)
    class Config:
        sizes: list[int] = field(default_factory=list)
        names: tuple[str, ...] = field(default_factory=tuple)
        made: list[int] = field(default_factory=lambda: [1])

    assert [f.default for f in read(Config).fields] == [[], (), MISSING]


def test_a_named_tuple_is_a_record_of_its_fields():
    fields = (Field("x", Leaf("p.x", "SymInt")), Field("y", Leaf("p.y", "float"), 0.5))
    assert read(Point) == Record("p", "namedtuple", Point, fields)


@pytest.mark.parametrize(
    ("annotation", "bases"),
    [
        (tuple[int, float], ["SymInt", "float"]),
        (tuple[Tensor, Tensor], ["Tensor", "Tensor"]),
        (typing.Tuple[int], ["SymInt"]),
        (tuple[()], []),
    ],
    ids=str,
)
def test_a_tuple_of_fixed_length_is_a_record_of_its_elements(annotation, bases):
    fields = tuple(Field(str(i), Leaf(f"p.{i}", base)) for i, base in enumerate(bases))
    assert read(annotation) == Record("p", "tuple", tuple, fields)


def test_records_of_every_kind_nest():
    node = read(tuple[Point, Optional[tuple[Outer, int]]])
    point, pair = (f.node for f in node.fields)
    assert (point.kind, pair.kind, pair.optional) == ("namedtuple", "tuple", True)
    assert pair.fields[0].node.fields[0].node.fields[0].node.path == "p.1.0.inner.weight"


def test_parameters_keep_their_kinds_and_defaults():
    def fn(a: int, /, b: int = 2, *, c: int = 3, d: int) -> None: ...

    parameters = read_signature(fn, {}).parameters
    kinds = ["positional-only", "positional-or-keyword", "keyword-only", "keyword-only"]
    assert [p.kind for p in parameters] == kinds
    assert [p.default for p in parameters] == [MISSING, 2, 3, MISSING]


UserId = NewType("UserId", int)
SpecialId = NewType("SpecialId", UserId)
Scale: TypeAlias = float
Maybe: TypeAlias = Optional[Tensor]


@pytest.mark.parametrize(
    ("annotation", "leaf"),
    [
        (Annotated[int, "rows"], Leaf("p", "SymInt")),
        (Annotated[Annotated[int, "a"], "b"], Leaf("p", "SymInt")),
        (Annotated[int | None, "rows"], Leaf("p", "SymInt", optional=True)),
        (Optional[Annotated[int, "rows"]], Leaf("p", "SymInt", optional=True)),
        (list[Annotated[int, "rows"]], Leaf("p", "SymInt", container="list")),
        (UserId, Leaf("p", "SymInt")),
        (SpecialId, Leaf("p", "SymInt")),
        (Optional[UserId], Leaf("p", "SymInt", optional=True)),
        (list[UserId], Leaf("p", "SymInt", container="list")),
        (tuple[UserId, ...], Leaf("p", "SymInt", container="tuple")),
        (Annotated[SpecialId, "x"] | None, Leaf("p", "SymInt", optional=True)),
        (Scale, Leaf("p", "float")),
        (Maybe, Leaf("p", "Tensor", optional=True)),
        (list[Maybe], Leaf("p", "Tensor", container="list", element_optional=True)),
    ],
    ids=str,
)
def test_annotated_new_types_and_aliases_are_seen_through(annotation, leaf):
    assert read(annotation) == leaf


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type statements came with Python 3.12")
def test_a_type_statement_is_seen_through():
    space = {"Tensor": Tensor}
    exec("type Rows = int\ntype Some = list[Rows] | None", space)
    assert read(space["Some"]) == Leaf("p", "SymInt", optional=True, container="list")


def test_an_annotated_dataclass_is_seen_through():
    assert read(Annotated[Inner, "settings"]) == read(Inner)
    assert read(NewType("Special", Inner)) == read(Inner)


def test_stringified_annotations_are_resolved():
    def fn(x: "Tensor", cfg: "Optional[Inner]", mode: "Literal['a', 'b'] | None") -> "Tensor": ...

    x, cfg, mode = (p.node for p in read_signature(fn, {}).parameters)
    assert x == Leaf("x", "Tensor")
    assert cfg.cls is Inner
    assert mode.codec.values == ("a", "b")


def test_stringified_parts_of_annotations_are_resolved():
    def fn(xs: list["Tensor"], cfg: Optional["Inner"]) -> "None": ...

    xs, cfg = (p.node for p in read_signature(fn, {}).parameters)
    assert xs == Leaf("xs", "Tensor", container="list")
    assert cfg.cls is Inner


def test_names_from_the_enclosing_function_are_found():
    class Local(enum.Enum):
        A = "a"

    def fn(mode: "Local") -> None: ...

    assert read_signature(fn, user_scope(fn)).parameters[0].node.codec.cls is Local


FUTURE = """
from __future__ import annotations
import dataclasses, enum, typing
import opforge, torch

T = torch.Tensor

def make(name):
    class Mode(enum.Enum):
        FAST = "fast"

    @dataclasses.dataclass(frozen=True)
    class Inner:
        mode: Mode

    @dataclasses.dataclass(frozen=True)
    class Config:
        inner: typing.Optional[Inner]
        sizes: tuple[int, ...] = ()

    def deeper():
        @opforge.op(name)
        def f(x: T, config: Config, mode: Mode = Mode.FAST) -> typing.Optional[T]:
            assert type(config) is Config and type(config.inner) is Inner
            assert config.inner.mode is Mode.FAST is mode
            return x + len(config.sizes)
        return f
    return deeper(), Config(Inner(Mode.FAST), (1, 2))
"""


def test_future_annotations_find_names_of_all_enclosing_functions(load, op_name):
    module = load(FUTURE)
    op, config = module.make(op_name())
    assert torch.equal(op(torch.zeros(2), config), torch.full((2,), 2.0))


def test_future_annotations_work_without_a_decorator_line(load, op_name):
    source = """\
from __future__ import annotations
import torch
T = torch.Tensor
def f(x: T) -> T:
    return -x
"""
    module = load(source)
    op = opforge.op(op_name())(module.f)
    assert torch.equal(op(torch.ones(2)), -torch.ones(2))


def test_a_function_s_own_globals_come_before_names_where_it_is_decorated(load, op_name):
    source = """\
from __future__ import annotations
import torch
Kind = int
def f(x: torch.Tensor, k: Kind) -> torch.Tensor:
    return x * k
"""
    module = load(source)
    Kind = str  # noqa: F841, N806  # a name that happens to be the same
    op = opforge.op(op_name())(module.f)
    assert "SymInt k" in opforge.info(op).schema


def test_a_class_s_own_globals_come_before_names_where_it_is_used(load, op_name):
    source = """\
from __future__ import annotations
import dataclasses
Kind = int
@dataclasses.dataclass(frozen=True)
class Config:
    k: Kind
"""
    Config = load(source).Config  # noqa: N806
    Kind = str  # noqa: F841, N806  # a name that happens to be the same

    def f(x: Tensor, config: Config) -> Tensor:
        return x * config.k

    op = opforge.op(op_name())(f)
    assert "SymInt config__k" in opforge.info(op).schema


def test_a_dataclass_defined_elsewhere_is_resolved_in_its_own_module(load):
    source = """\
from __future__ import annotations
import dataclasses, torch as only_here
@dataclasses.dataclass(frozen=True)
class Config:
    t: only_here.Tensor
"""
    module = load(source)
    assert read(module.Config).fields[0].node == Leaf("p.t", "Tensor")


def test_a_name_that_a_closure_keeps_is_found_after_its_function_returned():
    def outer():
        class Mode(enum.Enum):
            A = 1

        def fn(mode: "Mode") -> None:
            Mode.A  # noqa: B018  # keeps the name in the closure

        return fn, Mode

    fn, mode = outer()
    assert read_signature(fn, {}).parameters[0].node.codec.cls is mode


def test_decorating_runs_no_text_that_only_looks_like_an_annotation():
    ran = []

    def fn(x: Annotated[int, "ran.append(1)"], y: Literal["ran.append(2)"]) -> None: ...

    read_signature(fn, {"ran": ran})
    assert ran == []


def refusal(fn, error, op_name):
    """The error of `@opforge.op`; it must name the op and the function's location."""
    name = op_name()
    with pytest.raises(error) as caught:
        opforge.op(name)(fn)
    text = str(caught.value)
    code = fn.__code__
    assert text.startswith(f"{name} ({code.co_filename}:{code.co_firstlineno})")
    assert isinstance(caught.value, TypeError)
    return text


def refused(annotation, error, op_name):
    def fn(p):
        return None

    fn.__annotations__ = {"p": annotation, "return": None}
    text = refusal(fn, error, op_name)
    assert "parameter 'p" in text
    assert "fix:" in text
    return text


def test_star_args_are_refused(op_name):
    def fn(x: Tensor, *rest: Tensor) -> Tensor: ...

    text = refusal(fn, BadSignature, op_name)
    assert "parameter 'rest': an operator's schema cannot express *rest" in text
    assert "use list[torch.Tensor]" in text


def test_double_star_kwargs_are_refused(op_name):
    def fn(x: Tensor, **options: int) -> Tensor: ...

    text = refusal(fn, BadSignature, op_name)
    assert "parameter 'options': an operator's schema cannot express **options" in text
    assert "name each parameter" in text


def test_missing_annotations_are_listed_all_at_once(op_name):
    def fn(x, y: int, z=1, *, w):
        return x

    text = refusal(fn, BadSignature, op_name)
    assert "parameter 'x': no type annotation on x, z, w, return\n" in text
    assert "found: def fn(x, y: int, z=1, *, w)" in text
    assert "-> None if nothing is returned" in text


def test_a_missing_return_annotation_alone_is_named(op_name):
    def fn(x: Tensor):
        return x

    assert "no type annotation on return\n" in refusal(fn, BadSignature, op_name)


@dataclass
class Mutable:
    n: int


def test_a_mutable_dataclass_is_refused_with_frozen_as_the_fix(op_name):
    text = refused(Mutable, BadSignature, op_name)
    assert "Mutable is a mutable dataclass" in text
    assert "fix: add frozen=True: @dataclass(frozen=True) class Mutable" in text


def test_a_mutable_dataclass_inside_a_frozen_one_is_refused_with_frozen_as_the_fix(op_name):
    @dataclass(frozen=True)
    class Config:
        inner: Mutable

    text = refused(Config, BadSignature, op_name)
    assert "parameter 'p.inner': Mutable is a mutable dataclass" in text
    assert "add frozen=True" in text


@pytest.mark.parametrize(
    "annotation",
    [dict, dict[str, int], Mapping[str, Tensor], collections.OrderedDict[str, int], dict | None],
    ids=str,
)
def test_dicts_are_refused_in_favour_of_a_frozen_dataclass(annotation, op_name):
    text = refused(annotation, BadSignature, op_name)
    assert "an operator's schema cannot express" in text
    assert "use a frozen dataclass with a field per key" in text


@pytest.mark.parametrize(
    "annotation", [set, set[int], frozenset[str], collections.abc.Set[int]], ids=str
)
def test_sets_are_refused_in_favour_of_a_list(annotation, op_name):
    text = refused(annotation, BadSignature, op_name)
    assert "use a list, or a Literal or Enum per element" in text


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class IntAccess(enum.IntFlag):
    READ = 1
    WRITE = 2


@pytest.mark.parametrize("cls", [Access, IntAccess])
def test_flags_are_refused(cls, op_name):
    text = refused(cls, BadSignature, op_name)
    assert f"{cls.__name__} is a Flag, whose combinations are not members" in text
    assert "use one bool per flag" in text


@pytest.mark.parametrize(
    ("annotation", "found"),
    [
        (Literal["a", 1], "'a' (str), 1 (int)"),
        (Literal[1, True], "1 (int), True (bool)"),
        (Literal["a", 1, None], "'a' (str), 1 (int), None (NoneType)"),
        (Literal[b"a"], "b'a' (bytes)"),
        (Literal[Color.RED], "<Color.RED: 'red'> (Color)"),
        (Literal[None], "None (NoneType)"),
    ],
    ids=str,
)
def test_a_literal_of_mixed_or_other_kinds_is_refused(annotation, found, op_name):
    text = refused(annotation, BadSignature, op_name)
    assert "a Literal must hold only str, only int or only bool values (and None)" in text
    assert f"found: {found}" in text
    assert "or an Enum" in text


@pytest.mark.parametrize(
    ("annotation", "found"),
    [
        (Union[int, str], "int or str"),
        (int | float, "int or float"),
        (Tensor | float, "Tensor or float"),
        (Union[int, str, None], "int or str"),
        (Tensor | list[Tensor], "Tensor or list[torch.Tensor]"),
        (Inner | Point, "Inner or Point"),
    ],
    ids=str,
)
def test_a_union_other_than_with_none_is_refused(annotation, found, op_name):
    text = refused(annotation, BadSignature, op_name)
    assert "a schema argument has one type" in text
    assert f"found: {found}" in text
    assert "X | None" in text


@dataclass(frozen=True)
class Tree:
    value: int
    left: "Tree | None" = None


class Chain(NamedTuple):
    value: int
    rest: Optional["Chain"] = None


@pytest.mark.parametrize(
    ("cls", "where"), [(Tree, "p.left"), (Chain, "p.rest")], ids=["dataclass", "namedtuple"]
)
def test_a_class_that_contains_itself_is_refused(cls, where, op_name):
    text = refused(cls, BadSignature, op_name)
    assert f"parameter '{where}': {cls.__name__} contains itself" in text


def test_one_class_twice_side_by_side_is_not_recursion():
    @dataclass(frozen=True)
    class Pair:
        left: Inner
        right: Inner

    assert len(read(Pair).fields) == 2


T = TypeVar("T")


class Plain:
    pass


@pytest.mark.parametrize(
    "annotation",
    [Any, object, Plain, complex, bytes, Callable[[int], int], T, type[int], None, range, slice],
    ids=str,
)
def test_any_other_type_is_refused_with_the_usable_ones(annotation, op_name):
    text = refused(annotation, BadSignature, op_name)
    assert "an operator's schema cannot express" in text
    assert "Tensor, int, float, bool, str" in text
    assert "a frozen dataclass" in text


@pytest.mark.parametrize("annotation", [list, tuple, Sequence, typing.List, typing.Tuple], ids=str)
def test_a_list_or_tuple_without_an_element_type_is_refused(annotation, op_name):
    assert "give the element type: list[int]" in refused(annotation, BadSignature, op_name)


@pytest.mark.parametrize(
    ("annotation", "element"),
    [
        (list[list[int]], "list[int]"),
        (list[Inner], "Inner"),
        (list[tuple[int, int]], "tuple[int, int]"),
        (tuple[Point, ...], "Point"),
        (list[dict[str, int]], "dict[str, int]"),
    ],
    ids=str,
)
def test_a_list_of_what_no_schema_can_list_is_refused(annotation, element, op_name):
    text = refused(annotation, BadSignature, op_name)
    assert "has elements that a schema's list cannot hold" in text
    assert f"found: elements of type {element}" in text


def test_a_bad_field_is_named_by_its_path(op_name):
    @dataclass(frozen=True)
    class Deep:
        table: dict[str, int]

    @dataclass(frozen=True)
    class Config:
        deep: Deep

    assert "parameter 'p.deep.table'" in refused(Config, BadSignature, op_name)


def test_an_untyped_namedtuple_is_refused_with_typed_fields_as_the_fix(op_name):
    untyped = collections.namedtuple("Pair", "a b")  # noqa: PYI024  # what is tested
    text = refused(untyped, BadSignature, op_name)
    assert "Pair has fields without a type: a, b" in text
    assert "class Pair(typing.NamedTuple)" in text


def test_an_enum_without_members_is_refused(op_name):
    class Nothing(enum.Enum):
        pass

    def fn(p: Nothing) -> None: ...

    assert "Nothing is an Enum without members" in refusal(fn, BadSignature, op_name)


def test_an_undefined_name_is_refused(op_name):
    def fn(x: Tensor, cfg: "Confg") -> Tensor: ...  # noqa: F821

    text = refusal(fn, BadSignature, op_name)
    assert "parameter 'cfg': unresolved string annotation: name 'Confg' is not defined" in text
    assert "not only under `if TYPE_CHECKING:`" in text


def test_only_the_parameter_with_an_undefined_name_is_named(op_name):
    def fn(x: "Tensor", y: "T1 | None", z: "Ten") -> "Tensor": ...  # noqa: F821

    text = refusal(fn, BadSignature, op_name)
    assert "parameter 'y': unresolved string annotation: name 'T1'" in text

    def fn(x: "Tensor", z: "Ten") -> "Tensor": ...  # noqa: F821

    text = refusal(fn, BadSignature, op_name)
    assert "parameter 'z': unresolved string annotation: name 'Ten'" in text


def test_an_unresolvable_return_annotation_is_refused(op_name):
    def fn(x: "Tensor") -> "Nowhere": ...  # noqa: F821

    assert "name 'Nowhere' is not defined" in refusal(fn, BadSignature, op_name)


def test_an_undefined_name_in_a_field_is_refused(op_name):
    @dataclass(frozen=True)
    class Config:
        mode: "Nowhere"  # noqa: F821

    text = refused(Config, BadSignature, op_name)
    assert "name 'Nowhere' is not defined" in text


@pytest.mark.parametrize("text", ["int +", "torch.Tensr", "Tensor[int]"])
def test_a_string_that_is_not_an_annotation_is_refused(text, op_name):
    def fn(p: text) -> None: ...

    assert "fix:" in refusal(fn, BadSignature, op_name)


def test_a_number_as_an_annotation_is_refused(op_name):
    def fn(p: 3) -> None: ...

    refusal(fn, BadSignature, op_name)


@pytest.mark.parametrize(
    ("annotation", "returns"),
    [
        (None, None),
        (type(None), None),
        (Tensor, Leaf("return", "Tensor")),
        (Optional[Tensor], Leaf("return", "Tensor", optional=True)),
        (list[Tensor], Leaf("return", "Tensor", container="list")),
        (tuple[Tensor, ...], Leaf("return", "Tensor", container="tuple")),
        (int, Leaf("return", "SymInt")),
        (float, Leaf("return", "float")),
        (bool, Leaf("return", "bool")),
        (torch.types.Number, Leaf("return", "Scalar")),
    ],
    ids=str,
)
def test_a_return_annotation_is_a_leaf_or_nothing(annotation, returns):
    assert read_return(annotation) == returns


def test_a_return_annotation_may_be_a_record():
    class Outputs(NamedTuple):
        value: Tensor
        index: Tensor

    assert read_return(tuple[Tensor, Tensor]).kind == "tuple"
    assert read_return(Outputs).cls is Outputs


@pytest.mark.parametrize(
    "annotation",
    [
        str,
        torch.dtype,
        torch.device,
        Color,
        Literal["a"],
        Optional[int],
        list[int],
        tuple[int, ...],
        Optional[tuple[Tensor, Tensor]],
        tuple[Tensor, str],
        Optional[Point],
    ],
    ids=str,
)
def test_an_unsupported_return_type_is_refused_with_the_supported_ones(annotation, op_name):
    def fn(x: Tensor):
        return x

    fn.__annotations__["return"] = annotation
    text = refusal(fn, BadSignature, op_name)
    assert "an operator cannot return" in text
    assert "return Tensor, Optional[Tensor], list[Tensor]" in text


@pytest.mark.parametrize("annotation", [dict[str, Tensor], Tensor | list[Tensor], Any], ids=str)
def test_a_return_annotation_of_no_known_type_is_called_a_return(annotation, op_name):
    def fn(x: Tensor):
        return x

    fn.__annotations__["return"] = annotation
    assert "return" in refusal(fn, TypeError, op_name)


def test_a_wrapped_function_is_read_through_its_wrapper():
    import functools

    def fn(x: Tensor, n: int = 2) -> Tensor:
        return x

    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)

    assert [p.name for p in read_signature(wrapper, {}).parameters] == ["x", "n"]
    assert inspect.signature(wrapper) == inspect.signature(fn)


@dataclasses.dataclass(frozen=True)
class Dtypes:
    several: list[torch.dtype]


@pytest.mark.parametrize(
    "annotation",
    [
        list[torch.dtype],
        Optional[list[torch.dtype]],
        list[Optional[torch.dtype]],
        tuple[torch.layout, ...],
        list[torch.memory_format],
        Dtypes,
    ],
)
def test_a_list_of_dtypes_and_the_like_is_refused(annotation, op_name):
    text = refused(annotation, BadSignature, op_name)
    assert "torch would turn the elements of the list into ints" in text
    assert "use a tuple of fixed length" in text
