"""Signatures laid flat: the schema's text, the call path, defaults, and the wrapper's text."""

import enum
import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import pytest
import torch
from torch import Tensor

import opforge
from opforge.errors import BadDeclaration, BadOption, BadSignature


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Shape(enum.Enum):
    WIDE = (2, 1)


@dataclass(frozen=True)
class Inner:
    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class Config:
    inner: Inner
    scale: float = 1.0


@dataclass(frozen=True)
class Scaled:
    scale: float = 0.5
    sizes: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Rows:
    count: int


@dataclass(frozen=True)
class Nested:
    deep: Rows | None
    sizes: list[int] | None


@dataclass(frozen=True)
class Flagged:
    present: bool


@dataclass(frozen=True)
class Clashing:
    rows__count: int
    rows: Rows


@dataclass(frozen=True)
class Empty:
    pass


NOTHING = inspect.Parameter.empty


def made(name, annotation=Tensor, default=NOTHING, returns=Tensor, parameter="a", **options):
    """An op `(x: Tensor, a: annotation = default) -> returns`."""

    def body(*_):
        raise NotImplementedError

    parameters = [
        inspect.Parameter("x", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        inspect.Parameter(parameter, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default),
    ]
    body.__signature__ = inspect.Signature(
        [p.replace(annotation=a) for p, a in zip(parameters, (Tensor, annotation), strict=True)],
        return_annotation=returns,
    )
    body.__annotations__ = {"x": Tensor, parameter: annotation, "return": returns}
    return opforge.op(name, mode="custom_op", **options)(body)


@pytest.mark.parametrize(
    ("annotation", "default", "text", "path"),
    [
        (Tensor | None, None, "Tensor? a=None", "direct"),
        (Sequence[Tensor], NOTHING, "Tensor[] a", "direct"),
        (list[Tensor] | None, NOTHING, "Tensor[]? a", "direct"),
        (list[Tensor | None], NOTHING, "Tensor?[] a", "direct"),
        (int, 3, "SymInt a=3", "direct"),
        (float, 0.5, "float a=0.5", "direct"),
        (bool, True, "bool a=True", "direct"),
        (str, 'it"s\n', 'str a="it\\"s\\n"', "direct"),
        (torch.dtype, torch.float16, "ScalarType a=5", "direct"),
        (torch.device, torch.device("cpu"), "Device a=cpu", "direct"),
        (list[int], [1, 2], "SymInt[] a=[1, 2]", "direct"),
        (tuple[int, ...], NOTHING, "SymInt[] a", "lowered"),
        (Literal["b", "c"], "b", 'str a="b"', "lowered"),
        (Level, Level.LOW, "int a=1", "lowered"),
        (Color, Color.RED, 'str a="red"', "flattened"),
        (Shape, NOTHING, "str a", "flattened"),
        (tuple[int, float], NOTHING, "SymInt a__0, float a__1", "flattened"),
        (Empty, NOTHING, "", "flattened"),
        (Scaled, NOTHING, "float a__scale=0.5, SymInt[] a__sizes=[]", "flattened"),
        (Config, NOTHING, "Tensor a__inner__weight, Tensor? a__inner__bias, float a__scale=1.",
         "flattened"),
        (Config | None, None, (
            "bool a__present=False, Tensor? a__inner__weight=None, "
            "Tensor? a__inner__bias=None, float? a__scale=None"
        ), "flattened"),
        (Nested | None, NOTHING, (
            "bool a__present, bool? a__deep__present, SymInt? a__deep__count, SymInt[]? a__sizes"
        ), "flattened"),
        (Flagged, NOTHING, "bool a__present", "flattened"),
    ],
)  # fmt: skip
def test_a_parameter_has_its_schema_and_path(op_name, annotation, default, text, path):
    info = opforge.info(made(op_name(), annotation, default))
    assert info.schema == f"{info.name}(Tensor x{', ' if text else ''}{text}) -> Tensor"
    assert (info.path, info.notes) == (path, ())


@pytest.mark.parametrize(
    ("annotation", "default"),
    [
        (float, math.inf),
        (float, -0.0),
        (float, 5e-324),
        (torch.types.Number, 1j),
        (str, "\x00"),
        (list[str], ["a"]),
        (list[int] | None, [1]),
        (torch.layout, torch.sparse_coo),
    ],
)
def test_a_default_that_no_schema_can_express_is_the_callables(op_name, annotation, default):
    info = opforge.info(made(op_name(), annotation, default))
    assert info.path == "flattened"
    assert "=" not in info.schema
    (note,) = info.notes
    assert "default of a, which a schema cannot express" in note


def test_a_default_before_a_required_argument_is_the_callables(op_name):
    @opforge.op(op_name())
    def flattened(x: Tensor, a: Scaled, b: Color) -> Tensor: ...

    @opforge.op(op_name())
    def lowered(x: Tensor, s: float = 1.0, *, w: Tensor, e: float = 2.0) -> Tensor: ...

    assert "float a__scale, SymInt[] a__sizes, str b" in opforge.info(flattened).schema
    assert "a.scale" in "".join(opforge.info(flattened).notes)
    assert opforge.info(lowered).schema.endswith(
        "(Tensor x, float s=1., *, Tensor w, float e=2.) -> Tensor"
    )


@pytest.mark.parametrize(
    ("annotation", "default"),
    [
        (int, "three"),
        (int, 2**63),
        (int, None),
        (str, 3),
        (bool, 1),
        (Literal["a"], "b"),
        (Color, "green"),
        (list[int], 3),
        (tuple[int, int], (1,)),
        (Config, None),
        (Scaled, Rows(1)),
        (Scaled, Scaled("half")),
        (torch.dtype, "float16"),
        (Tensor, torch.ones(1)),
    ],
)
def test_a_default_of_another_type_is_refused(op_name, annotation, default):
    with pytest.raises(BadSignature) as caught:
        made(op_name(), annotation, default)
    assert caught.value.parameter == "a"
    assert caught.value.found


@pytest.mark.parametrize(
    ("annotation", "parameter", "path"),
    [
        (Flagged | None, "a", "a.present"),
        (Clashing, "a", "a.rows.count"),
        (Scaled, "_of_a", "_of_a.scale"),
        (int, "_of_x", "_of_x"),
    ],
)
def test_names_that_collide_are_refused(op_name, annotation, parameter, path):
    with pytest.raises(BadDeclaration) as caught:
        made(op_name(), annotation, parameter=parameter)
    assert caught.value.parameter == path


@pytest.mark.parametrize(
    ("mutates_args", "names"),
    [
        ({"x": None}, {"x"}),
        (["a"], {"a__inner__weight", "a__inner__bias"}),
        (["a__inner"], {"a__inner__weight", "a__inner__bias"}),
        (["a.inner.weight", "x", "x"], {"a__inner__weight", "x"}),
        ((name for name in ["a__inner__weight"]), {"a__inner__weight"}),
        ("unknown", {"x", "a__inner__weight", "a__inner__bias"}),
    ],
)
def test_mutates_args_takes_every_spelling(op_name, mutates_args, names):
    schema = opforge.info(made(op_name(), Config, mutates_args=mutates_args)).overload._schema
    assert {a.name for a in schema.arguments if a.is_write} == names


@pytest.mark.parametrize(
    ("mutates_args", "said"),
    [
        (["a.innr"], "did you mean 'a.inner"),
        ([""], "valid names: a, x, a.inner.weight, a.inner.bias"),
        (["a.scale"], "holds no tensor"),
        ("x", "mutates_args=['x']"),
        (3, "mutates_args=['x']"),
    ],
)
def test_what_names_no_tensor_in_mutates_args_is_refused(op_name, mutates_args, said):
    with pytest.raises(BadOption) as caught:
        made(op_name(), Config, mutates_args=mutates_args)
    assert said in str(caught.value)


def test_two_classes_with_the_same_name_are_told_apart(op_name):
    def config(text):
        @dataclass(frozen=True)
        class Config:
            text: str

        return Config, Config(text)

    (first, one), (second, two) = config("one"), config("two")
    seen = []

    def body(x: Tensor, a: first, b: second) -> Tensor:
        seen.append((type(a), type(b), a.text, b.text))
        return x.clone()

    opforge.op(op_name(), fake=["x"])(body)(torch.ones(1), one, two)
    assert seen == [(first, second, "one", "two")]
