"""What the manifest tells torch of an operator: its arguments, fixed values and choices."""

import dataclasses
import enum

import torch
from torch import Tensor

import opforge
from opforge import native
from opforge.native.frontend.expand import expand, schema_arguments, schema_of, schema_returns
from opforge.registry import registry


class Mode(enum.Enum):
    FAST = "fast"
    EXACT = "exact"


@dataclasses.dataclass(frozen=True)
class Config:
    scale: float
    mode: Mode = Mode.FAST
    shift: Tensor | None = None


def everything(
    x: Tensor,
    cfg: Config,
    dtype: torch.dtype = torch.float16,
    sizes: tuple[int, int] = (1, 2),
    *,
    eps: float = float("inf"),
    flag: bool = True,
) -> tuple[Tensor, Tensor | None]:
    return x + 1, None


def described(make_op):
    op = make_op(everything, mode="custom_op")
    native.declare(
        op,
        x=native.tensor("n", dtype="fp32"),
        cfg={"scale": native.scalar(), "mode": native.choice(Mode.EXACT, Mode.FAST)},
        dtype=native.choice(torch.float16, torch.bfloat16),
    )
    entry = registry.get(op)
    return entry, schema_arguments(entry, expand(entry))


def test_every_argument_is_there_in_the_schemas_order(make_op):
    entry, arguments = described(make_op)
    assert schema_of(entry) == opforge.info(entry.handle).name + entry.lowered.schema
    assert [a.name for a in arguments] == [a.name for a in entry.lowered.arguments]
    assert schema_returns(entry) == ("Tensor", "Tensor?")


def test_choices_are_what_the_schema_carries_and_the_rest_is_fixed(make_op):
    _, arguments = described(make_op)
    by_name = {a.name: a for a in arguments}
    assert by_name["cfg__mode"].values == ("fast", "exact")
    assert by_name["dtype"].values == (("dtype", "float16"), ("dtype", "bfloat16"))
    assert by_name["x"].values == ()
    fixed = {a.name: a.values for a in arguments if a.fixed}
    assert fixed == {
        "cfg__shift": (None,), "sizes__0": (1,), "sizes__1": (2,), "eps": (float("inf"),),
        "flag": (True,),
    }  # fmt: skip


def test_a_function_that_is_not_an_operator_has_no_schema(make_op):
    def plain(x: Tensor) -> Tensor:
        return x + 1

    fn = make_op(plain, mode="none")
    assert opforge.info(fn).mode == "none"
    native.declare(fn, x=native.tensor("n", dtype="fp32"))
    entry = registry.get(fn)
    assert schema_of(entry) == ""
    assert schema_arguments(entry, expand(entry)) == ()
