"""Declarations expanded: parameters, cases, and calls of the function rebuilt from leaves."""

# Fields are declared with dict(...), as in the documentation; the old spellings are tested, too.
# ruff: noqa: C408, UP045

import dataclasses
import enum
from typing import Literal, NamedTuple, Optional

import pytest
import torch
from torch import Tensor

from opforge import native
from opforge.native.frontend.expand import expand
from opforge.native.ir.cases import Bound
from opforge.native.ir.expr import Var
from opforge.native.ir.interface import ChoiceParam, ScalarParam, TensorParam
from support.native.declared import Config, Inner, Mode, Window, configured, rms_norm

M, K, N = Var("m"), Var("k"), Var("n")


def declared(op, **specs):
    native.declare(op, **specs)
    return expand(op)


def chosen(found, case, param):
    """The Python value that a case has for a choice."""
    return found.values[param][dict(case.choices)[param]]


def shown(case):
    """`x fp16 (m, 4)`, `bias absent`, `mode=1` of a case."""
    tensors = [
        f"{t.param} {t.dtype} ({', '.join(map(str, t.shape))})"
        if t.present
        else f"{t.param} absent"
        for t in case.tensors
    ]
    return ", ".join([*tensors, *(f"{name}={index}" for name, index in case.choices)])


def test_bounds_and_fixed_sizes_reach_cases_and_the_text(make_op):
    found = declared(
        make_op(rms_norm),
        x=native.tensor("rows heads hidden", "fp16"),
        weight=native.tensor("hidden 4", "fp16"),
        dims={"rows": (0, None), "heads": [16, 8], "hidden": 128},
    )
    assert found.cases[0].tensors[0].shape == (Var("rows"), Var("heads"), 128)
    assert found.cases[0].tensors[1].shape == (128, 4)
    assert found.cases[0].bounds == (Bound("rows"), Bound("heads", 8, 16, (8, 16)))
    assert found.params[0].doc == "fp16, 3-d (rows, heads = 8 or 16, hidden = 128), compact"
    found = declared(
        make_op(rms_norm),
        x=native.tensor("rows hidden", "fp16"),
        weight=native.tensor("hidden", "fp16"),
        dims={"rows": (2, None), "hidden": (1, 8192)},
    )
    assert found.params[0].doc == "fp16, 2-d (2 <= rows, 1 <= hidden <= 8192), compact"


def activated(
    x: Tensor,
    bias: Optional[Tensor] = None,
    *,
    act: Optional[Literal["relu", "gelu-tanh"]] = None,
    causal: bool = False,
    level: int = 3,
) -> Tensor:
    return torch.empty_like(x)


def test_optionals_and_choices_multiply(make_op):
    found = declared(
        make_op(activated),
        x=native.tensor("m", "T"),
        bias=native.optional(native.tensor("m", "T")),
        act=native.choice(None, "relu", "gelu-tanh"),
        causal=native.scalar("bool"),
        T=("fp16", "fp32"),
    )
    assert found.params[1:] == (
        TensorParam("bias", optional=True, doc="fp16 or fp32 (T), 1-d (m), compact"),
        ChoiceParam(
            "act",
            ("NONE", "RELU", "GELU_TANH"),
            ("None", "'relu'", "'gelu-tanh'"),
            "None, 'relu' or 'gelu-tanh'",
        ),
        ChoiceParam("causal", ("FALSE", "TRUE"), ("False", "True"), "False or True"),
    )
    assert found.constants == {"level": 3}
    assert len(found.cases) == 2 * 2 * 3 * 2
    assert shown(found.cases[0]) == "x fp16 (m), bias fp16 (m), act=0, causal=0"
    assert shown(found.cases[-1]) == "x fp32 (m), bias absent, act=2, causal=1"
    assert chosen(found, found.cases[-1], "act") == "gelu-tanh"
    assert chosen(found, found.cases[-1], "causal") is True


def test_a_dtype_of_an_absent_tensor_makes_no_cases(make_op):
    found = declared(
        make_op(activated),
        x=native.tensor("m", "fp32"),
        bias=native.optional(native.tensor("...", "T", ranks=(1, 2))),
        T=("fp16", "fp32"),
    )
    assert [shown(case) for case in found.cases] == [
        "x fp32 (m), bias fp16 (bias.shape[0])",
        "x fp32 (m), bias fp16 (bias.shape[0], bias.shape[1])",
        "x fp32 (m), bias absent",
        "x fp32 (m), bias fp32 (bias.shape[0])",
        "x fp32 (m), bias fp32 (bias.shape[0], bias.shape[1])",
    ]


def test_an_overlap_of_declarations_is_built_once_and_order_is_kept(make_op):
    op = make_op(activated)
    x = native.tensor("m", ("fp16", "bf16"))
    native.declare(op, x=x, act=native.choice("relu"))
    native.declare(op, x=native.tensor("m", ("fp32", "fp16")), act=native.choice("relu", None))
    native.declare(op, x=x)
    found = expand(op)
    assert found.params[1].values == ("'relu'", "None")
    assert [shown(case) for case in found.cases] == [
        "x fp16 (m), act=0",
        "x bf16 (m), act=0",
        "x fp32 (m), act=0",
        "x fp32 (m), act=1",
        "x fp16 (m), act=1",
        "x bf16 (m), act=1",
    ]


def test_tensors_that_the_op_mutates_are_written(make_op):
    def step(p: Tensor, cfg: Inner, g: Tensor) -> None:
        p.add_(g)

    op = make_op(step, mutates_args=["p", "cfg.weight"])
    t = native.tensor("n", "fp32")
    found = declared(op, p=t, g=t, cfg=dict(k=native.scalar("i32"), weight=t))
    written = {p.name: p.written for p in found.params if isinstance(p, TensorParam)}
    assert written == {"p": True, "g": False, "cfg__weight": True}
    assert found.outputs == ()


class Pair(NamedTuple):
    first: Tensor
    second: Optional[Tensor]


@pytest.mark.parametrize(
    ("returns", "names"),
    [
        (Tensor, ("out",)),
        (Optional[Tensor], ("out",)),
        (tuple[Tensor, Tensor], ("out0", "out1")),
        (Pair, ("first", "second")),
        (tuple[Pair, Tensor], ("out0__first", "out0__second", "out2")),
        (tuple[Tensor], ("out",)),
        (None, ()),
    ],
)
@pytest.mark.filterwarnings("ignore:.*returns nothing and declares no writes")
def test_outputs_are_numbered_unless_they_are_fields(make_op, returns, names):
    def fn(x: Tensor) -> returns:
        return x

    assert declared(make_op(fn), x=native.tensor("m", "fp16")).outputs == names


def test_an_output_gives_way_to_a_parameter_of_its_name(make_op):
    def fn(x: Tensor, out: Tensor) -> Tensor:
        return x * 1

    t = native.tensor("m", "fp16")
    assert declared(make_op(fn), x=t, out=t).outputs == ("out_",)


def test_an_instance_fixes_every_field(make_op):
    found = declared(
        make_op(configured), x=native.tensor("m", "fp16"), cfg=Config(2.0, Inner(3), Mode.SLOW)
    )
    assert [p.name for p in found.params] == ["x"]
    args, _ = found.arguments(found.cases[0], {"x": "X"})
    assert args == ("X", Config(2.0, Inner(3), Mode.SLOW), None)


DEFAULT = Config(2.0, Inner(3), Mode.SLOW)


def test_fields_that_are_left_out_have_the_parameters_default(make_op):
    def fn(x: Tensor, cfg: Config = DEFAULT) -> Tensor:
        return x * 1

    found = declared(make_op(fn), x=native.tensor("m", "fp16"), cfg__scale=native.scalar())
    args, _ = found.arguments(found.cases[0], {"x": "X", "cfg__scale": 0.25})
    assert args == ("X", dataclasses.replace(DEFAULT, scale=0.25))


def windowed(
    x: Tensor, window: Optional[Window] = None, /, *, steps: tuple[int, int] = (1, 2)
) -> Tensor:
    return torch.empty_like(x)


def test_a_record_may_be_none_in_one_declaration_and_given_in_another(make_op):
    op = make_op(windowed)
    x = native.tensor("m", "fp16")
    native.declare(op, x=x)
    native.declare(op, x=x, window=dict(left=native.scalar("i32"), right=native.choice(0, 1)))
    found = expand(op)
    assert found.params[1:] == (
        ChoiceParam("window__present", ("FALSE", "TRUE"), ("False", "True"), "False or True"),
        ScalarParam("window__left", "i32", "i32"),
        ChoiceParam("window__right", ("0", "1"), ("0", "1"), "0 or 1"),
    )
    # A case that has no window does not ask what its right side is.
    assert [case.choices for case in found.cases] == [
        (("window__present", 0),),
        (("window__present", 1), ("window__right", 0)),
        (("window__present", 1), ("window__right", 1)),
    ]
    calls = [found.arguments(case, {"x": "X", "window__left": 9}) for case in found.cases]
    assert [args for args, _ in calls] == [("X", None), ("X", Window(9, 0)), ("X", Window(9, 1))]
    assert all(kwargs == {"steps": (1, 2)} for _, kwargs in calls)
    assert type(calls[1][0][1]) is Window


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Odd(enum.Enum):
    PAIR = (1, 2)
    NOTHING = None


def valued(  # noqa: PLR0917  # a value of each kind
    x: Tensor,
    level: Level = Level.LOW,
    odd: Odd = Odd.PAIR,
    n: Optional[int] = None,
    f: float = 1.0,
    dtype: torch.dtype = torch.float16,
    sizes: list[int] = [1, 2],  # noqa: B006  # lists are copied for each call
    name: str = "",
) -> Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize(
    ("parameter", "values", "labels", "written"),
    [
        ("level", (Level.LOW, 2), ("LOW", "HIGH"), ("Level.LOW", "Level.HIGH")),
        ("n", (None, 4, -1), ("NONE", "4", "MINUS_1"), ("None", "4", "-1")),
        ("f", (1, 0.5, 1e-5, 1e20), ("1_0", "0_5", "1E_MINUS_05", "1E20"),
         ("1.0", "0.5", "1e-05", "1e+20")),
        ("dtype", (torch.bfloat16, torch.float32), ("BFLOAT16", "FLOAT32"),
         ("torch.bfloat16", "torch.float32")),
        ("sizes", ([1, 2], (3,), []), ("1_2", "3", "EMPTY"), ("(1, 2)", "(3,)", "()")),
        ("name", ("a-b", "a_b", "", "A B"), ("A_B", "A_B_2", "EMPTY", "A_B_3"),
         ("'a-b'", "'a_b'", "''", "'A B'")),
    ],
)  # fmt: skip
def test_choices_become_labels_that_c_can_have(make_op, parameter, values, labels, written):
    found = declared(
        make_op(valued), x=native.tensor("m", "fp16"), **{parameter: native.choice(*values)}
    )
    param = found.params[1]
    assert (param.labels, param.values) == (labels, written)
    assert len(found.cases) == len(labels)


def test_values_reach_the_body_as_it_takes_them(make_op):
    found = declared(
        make_op(valued),
        x=native.tensor("m", "fp16"),
        level=2,
        odd=native.choice((1, 2)),
        f=native.choice(1),
        sizes=native.choice((1, 2)),
        n=native.scalar(),
    )
    first, _ = found.arguments(found.cases[0], {"x": "X", "n": 3})
    assert first == ("X", Level.HIGH, Odd.PAIR, 3, 1.0, torch.float16, [1, 2], "")
    assert type(first[1]) is Level
    assert type(first[4]) is float
    # A body may change the list that it is given.
    again, _ = found.arguments(found.cases[0], {"x": "X", "n": 3})
    assert first[6] is not again[6]


def test_the_default_types_of_scalars_are_wide_ints_and_the_jits_float(make_op):
    def fn(x: Tensor, n: int, f: float, s: torch.types.Number, b: bool) -> Tensor:
        return x * 1

    scalar = native.scalar()
    found = declared(
        make_op(fn), x=native.tensor("m", "fp16"), n=scalar, f=scalar, s=scalar, b=scalar
    )
    assert [getattr(p, "dtype", p.name) for p in found.params] == ["x", "i64", "fp32", "fp32", "b"]
