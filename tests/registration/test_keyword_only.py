"""Keyword-only parameters: so in the schema, and in what setup_context gets."""

import pytest
import torch
from torch import Tensor

import opforge


def test_they_are_keyword_only_in_the_schema(op_name):
    @opforge.op(op_name())
    def op(x: Tensor, power: int = 2, *, scale: float, shift: float = 0.0) -> Tensor:
        return x**power * scale + shift

    schema = "(Tensor x, SymInt power=2, *, float scale, float shift=0.) -> Tensor"
    assert str(op._schema).endswith(schema)
    x = torch.full((2,), 3.0)
    assert op(x, scale=2.0).tolist() == [18, 18]
    assert op(x, 1, shift=1.0, scale=2.0).tolist() == [7, 7]
    with pytest.raises(RuntimeError, match="positional"):
        op(x, 1, 2.0)
    torch.library.opcheck(op, (x,), {"scale": 2.0})


def backward(ctx, grad):
    return grad * ctx.factor


@pytest.mark.parametrize("compiled", [False, True])
def test_setup_context_may_take_them_apart(op_name, compiled):
    seen = []

    def setup_context(ctx, inputs, keyword_only_inputs, output):
        seen.append((len(inputs), inputs[1], keyword_only_inputs))
        ctx.factor = inputs[1] * keyword_only_inputs["y"] * keyword_only_inputs["z"]

    @opforge.op(op_name(), backward=backward, setup_context=setup_context)
    def op(w: Tensor, x: int = 2, *, y: int = 3, z: int) -> Tensor:
        return w * x * y * z

    call = torch.compile(op, backend="aot_eager", fullgraph=True) if compiled else op
    w = torch.ones(2, requires_grad=True)
    call(w, z=7).sum().backward()
    assert w.grad.tolist() == [42, 42]
    assert all(inputs == (2, 2, {"y": 3, "z": 7}) for inputs in seen)


GIVEN = {"schema": "(Tensor x, *, float scale=2.0) -> Tensor"}


@pytest.mark.parametrize("options", [{}, GIVEN], ids=["inferred", "given"])
def test_a_backward_and_a_vmap_rule_get_them_whoever_wrote_the_schema(op_name, options):
    def rule(info, in_dims, x, *, scale=2.0):
        return x * scale, in_dims[0]

    def setup_context(ctx, inputs, output):
        _, ctx.factor = inputs

    @opforge.op(op_name(), backward=backward, setup_context=setup_context, vmap=rule, **options)
    def scaled(x: Tensor, *, scale: float = 2.0) -> Tensor:
        return x * scale

    for given, factor in (({}, 2), ({"scale": 3.0}, 3)):
        x = torch.ones(2, requires_grad=True)
        scaled(x, **given).sum().backward()
        assert x.grad.tolist() == [factor, factor]
        batched = torch.vmap(lambda row, given=given: scaled(row, **given))(torch.ones(2, 1))
        assert batched.tolist() == [[factor], [factor]]
