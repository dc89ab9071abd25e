"""From annotations to parameters, and the refusal of other annotations."""

# The old spellings are tested, too.
# ruff: noqa: PYI061, UP006, UP007, UP045

import collections
import collections.abc
import enum
import importlib
import itertools
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NewType, Optional, Union

import pytest
import torch
from torch import Tensor

import opforge
from opforge.analysis.signature import read_signature, user_scope
from opforge.errors import BadSignature
from opforge.model import Leaf
from support.processes import run_python

numbers = itertools.count()


def read(annotation):
    """The tree of one parameter."""

    def fn(p):
        return None

    fn.__annotations__ = {"p": annotation, "return": None}
    (parameter,) = read_signature(fn, {}).parameters
    return parameter.node


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


def infer_schema_accepts():
    table = torch._library.infer_schema.SUPPORTED_PARAM_TYPES
    return sorted(((str(kind), kind, text) for kind, text in table.items()), key=lambda row: row[0])


@pytest.mark.parametrize(
    ("annotation", "text"), [row[1:] for row in infer_schema_accepts()], ids=str
)
def test_everything_that_infer_schema_accepts_has_the_same_schema_type(annotation, text):
    leaf = read(annotation)
    assert leaf.schema_type().replace("SymInt", "int") == text.replace("SymInt", "int")


UserId = NewType("UserId", int)


@pytest.mark.parametrize(
    ("annotation", "leaf"),
    [
        (Sequence[int], Leaf("p", "SymInt", container="list")),
        (typing.List[float], Leaf("p", "float", container="list")),
        (Union[None, Tensor], Leaf("p", "Tensor", optional=True)),
        (
            list[Tensor | None] | None,
            Leaf("p", "Tensor", optional=True, container="list", element_optional=True),
        ),
        (typing.Tuple[float, ...], Leaf("p", "float", container="tuple")),
        (Annotated[Annotated[int | None, "a"], "b"], Leaf("p", "SymInt", optional=True)),
        (list[Annotated[int, "rows"]], Leaf("p", "SymInt", container="list")),
        (NewType("SpecialId", UserId) | None, Leaf("p", "SymInt", optional=True)),
        (tuple[UserId, ...], Leaf("p", "SymInt", container="tuple")),
    ],
    ids=str,
)
def test_every_spelling_of_a_type_is_read(annotation, leaf):
    assert read(annotation) == leaf


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type statements came with Python 3.12")
def test_a_type_statement_is_seen_through():
    space = {"Tensor": Tensor}
    exec("type Rows = int\ntype Some = list[Rows] | None", space)
    assert read(space["Some"]) == Leaf("p", "SymInt", optional=True, container="list")


@pytest.mark.parametrize(
    ("values", "by"),
    [
        (("a", "b"), "value"),
        ((1, 2), "value"),
        ((True, False), "name"),
        ((1, "two"), "name"),
        ((2**63,), "name"),
        (((1, 1),), "name"),
    ],
)
def test_an_enum_travels_by_value_where_a_schema_has_it(values, by):
    assert read(enum.Enum("Sample", {f"M{i}": v for i, v in enumerate(values)})).codec.by == by


ENUM_OF_ENUMS = """
import enum, torch
from opforge.analysis.signature import read_signature

class Level(enum.IntEnum):
    LOW = 1

class Named(enum.Enum):
    FIRST = Level.LOW

def f(p: Named) -> None: ...

print(read_signature(f, {}).parameters[0].node.base)
"""


def test_an_enum_whose_values_are_members_of_an_int_enum_is_read_at_once():
    # In a fresh process: a value of an int subclass once took forever.
    assert run_python(ENUM_OF_ENUMS).strip() == "int"


def test_only_what_an_instance_holds_is_a_field():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        last: int = 1
        first: float
        square: int = field(init=False)
        shared: ClassVar[dict[str, int]] = {}
        seed: InitVar[object] = None

    assert [f.name for f in read(Config).fields] == ["last", "first", "square"]


def test_stringified_annotations_are_resolved():
    def fn(xs: list["Tensor"], color: "Optional[Color]", mode: "Literal['a'] | None") -> "None": ...

    xs, color, mode = (p.node for p in read_signature(fn, {}).parameters)
    assert xs == Leaf("xs", "Tensor", container="list")
    assert color.codec.cls is Color
    assert mode.codec.values == ("a",)


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


def refusal(fn, op_name):
    """The error of `@opforge.op`; it must name the op and the function's location."""
    name = op_name()
    with pytest.raises(BadSignature) as caught:
        opforge.op(name)(fn)
    code = fn.__code__
    assert str(caught.value).startswith(f"{name} ({code.co_filename}:{code.co_firstlineno})")
    assert isinstance(caught.value, TypeError)
    assert caught.value.fix
    return caught.value


@dataclass
class Mutable:
    n: int


@dataclass(frozen=True)
class Holder:
    inner: Mutable


@dataclass(frozen=True)
class Tree:
    value: int
    left: "Tree | None" = None


class Chain(NamedTuple):
    value: int
    rest: Optional["Chain"] = None


@dataclass(frozen=True)
class Tables:
    table: dict[str, int]


@dataclass(frozen=True)
class Lost:
    mode: "Nowhere"  # noqa: F821


class Access(enum.IntFlag):
    READ = 1


class Nothing(enum.Enum):
    pass


class Point(NamedTuple):
    x: int


FROZEN, ELEMENT = "frozen=True", "give the element type"


@pytest.mark.parametrize(
    ("annotation", "path", "said"),
    [
        (Mutable, "p", FROZEN),
        (Holder, "p.inner", FROZEN),
        (dict | None, "p", "frozen dataclass"),
        (Mapping[str, Tensor], "p", "frozen dataclass"),
        (tuple[Tables, int], "p.0.table", "frozen dataclass"),
        (frozenset[str], "p", "use a list"),
        (Access, "p", "one bool per flag"),
        (Nothing, "p", "without members"),
        (Literal["a", 1, None], "p", "'a' (str), 1 (int), None (NoneType)"),
        (Literal[Color.RED], "p", "or an Enum"),
        (int | str | None, "p", "int or str"),
        (Tensor | list[Tensor], "p", "Tensor or list[torch.Tensor]"),
        (Tree, "p.left", "Tree contains itself"),
        (Chain, "p.rest", "Chain contains itself"),
        (Any, "p", "Tensor, int, float, bool, str"),
        (complex, "p", "Tensor, int, float, bool, str"),
        (None, "p", "Tensor, int, float, bool, str"),
        (list, "p", ELEMENT),
        (typing.Tuple, "p", ELEMENT),
        (list[list[int]], "p", "elements of type list[int]"),
        (tuple[Point, ...], "p", "elements of type Point"),
        (list[torch.dtype | None], "p", "tuple of fixed length"),
        (tuple[torch.layout, ...], "p", "tuple of fixed length"),
        (collections.namedtuple("Pair", "a b"), "p", "typing.NamedTuple"),  # noqa: PYI024
        (Lost, "p", "Nowhere"),
        ("Confg | None", "p", "Confg"),
        ("int +", "p", "unresolved"),
        (3, None, ""),
    ],
    ids=str,
)
def test_another_annotation_is_refused_by_its_path_with_a_fix(annotation, path, said, op_name):
    def fn(q: "Tensor", p):
        return None

    fn.__annotations__ = {"q": "Tensor", "p": annotation, "return": None}
    error = refusal(fn, op_name)
    assert error.parameter == path or path is None
    assert said in str(error)


@pytest.mark.parametrize(
    "annotation",
    [
        str,
        torch.dtype,
        Color,
        int | None,
        list[int],
        tuple[Tensor, str],
        Point | None,
        Any,
        "Lost1",
    ],
    ids=str,
)
def test_another_return_annotation_is_refused(annotation, op_name):
    def fn(x: Tensor):
        return x

    fn.__annotations__["return"] = annotation
    assert "return" in str(refusal(fn, op_name))


def test_parameters_that_no_schema_has_are_refused(op_name):
    def listed(x: Tensor, *rest: Tensor) -> Tensor: ...

    def named(x: Tensor, **rest: int) -> Tensor: ...

    for fn in (listed, named):
        assert refusal(fn, op_name).parameter == "rest"


def test_missing_annotations_are_listed_all_at_once(op_name):
    def fn(x, y: int, z=1, *, w):
        return x

    assert "no type annotation on x, z, w, return\n" in str(refusal(fn, op_name))


def test_one_class_twice_side_by_side_is_not_recursion():
    assert len(read(tuple[Point, Point]).fields) == 2
