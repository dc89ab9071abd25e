"""`returns=` of `native.declare`: outputs whose strides callers choose."""

import pytest
import torch
from torch import Tensor

from opforge import native
from opforge.errors import BadDeclaration, WrongArgument
from opforge.native.frontend.expand import expand
from opforge.native.ir.cases import TensorCase
from opforge.native.ir.expr import Var
from support.native.declared import silu

X = native.tensor("*s", dtype="T", ranks=(1, 2))
OUT = native.tensor("*s", dtype="T", layout="strided")


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


def strides(rank):
    return tuple(Var(f"out.stride[{d}]") for d in range(rank))


def refusal(error, op, returns, **specs):
    with pytest.raises(error) as caught:
        native.declare(op, **(specs or {"x": X, "T": ("fp16",)}), returns=returns)
    return caught.value


def test_the_strides_of_a_strided_output_are_variables_of_each_case(make_op):
    op = make_op(silu)
    native.declare(op, x=X, returns=OUT, T=("fp16", "fp32"))
    found = expand(op)
    shapes = {1: (Var("s[0]"),), 2: (Var("s[0]"), Var("s[1]"))}
    assert [case.returns for case in found.cases] == [
        (TensorCase("out", True, dtype, shapes[rank], strides(rank)),)
        for dtype in ("fp16", "fp32")
        for rank in (1, 2)
    ]


def test_an_output_that_is_not_declared_has_no_entry(make_op):
    op = make_op(halves)
    native.declare(
        op, x=native.tensor("m n", "fp16"), returns=(None, native.tensor("m half", "fp16"))
    )
    (case,) = expand(op).cases
    assert case.returns == (TensorCase("out1", True, "fp16", (Var("m"), Var("half"))),)


def test_a_parameter_called_returns_stays_a_parameter(make_op):
    def scale(x: Tensor, returns: float) -> Tensor:
        return x

    op = make_op(scale)
    native.declare(op, x=native.tensor("n", "fp32"), returns=native.scalar("fp32"))
    found = expand(op)
    assert [param.name for param in found.params] == ["x", "returns"]
    assert found.cases[0].returns == ()


def test_mistakes_are_told_with_the_fix(make_op):
    error = refusal(WrongArgument, make_op(silu), (OUT, OUT))
    assert error.what == "returns= describes 2, and the op has 1 output"
    assert error.fix == "returns=native.tensor('m n', dtype='fp16', layout='strided')"
    error = refusal(WrongArgument, make_op(halves), OUT)
    assert error.what == "returns= describes 1, and the op has 2 outputs"
    assert "None for an output that is as the body makes it" in error.fix
    error = refusal(WrongArgument, make_op(silu), "strided")
    assert error.what == "an output is declared with native.tensor"
    assert (error.parameter, error.found) == ("returns", "'strided'")
    dense = (None, native.tensor("*s", "T", layout="dense"))
    error = refusal(WrongArgument, make_op(halves), dense)
    assert (error.parameter, error.what) == ("returns[1]", "layout 'dense' is unknown")
    error = refusal(BadDeclaration, make_op(silu), native.tensor("*s", "U"))
    assert error.what == "type variable 'U' has no types"


@pytest.mark.parametrize(
    "given", [{"ranks": 2}, {"dtype": ("fp16", "fp32")}, {"layout": "strided", "broadcast": True}]
)
def test_what_the_parameters_decide_is_refused(make_op, given):
    spec = native.tensor("*s", **{"dtype": "fp16", **given})
    error = refusal(WrongArgument, make_op(silu), spec)
    assert error.what.startswith("the parameters decide")


def test_an_output_has_the_names_of_the_parameters(make_op):
    error = refusal(BadDeclaration, make_op(silu), native.tensor("...", "T", ranks=2))
    assert error.what == 'an output cannot have "...", which is one parameter\'s own'
    error = refusal(BadDeclaration, make_op(silu), native.tensor("*t", "T"))
    assert (error.what, error.fix) == (
        "no parameter has *t",
        "use the *s of a parameter, or name the sizes",
    )
