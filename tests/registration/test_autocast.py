"""Autocast: which inputs are cast, to what, and on which device."""

import dataclasses

import pytest
import torch

import opforge
from opforge.errors import BadOption

Tensor = torch.Tensor
LOW = [torch.bfloat16, torch.float16]


@dataclasses.dataclass(frozen=True)
class Weights:
    weight: Tensor
    scale: float = 1.0


def dtype_op(op_name, **options):
    """An op that returns its input and so shows what dtype arrived in the body."""

    @opforge.op(op_name(), **options)
    def op(x: Tensor) -> Tensor:
        return x.clone()

    return op


def cpu_autocast(dtype=torch.bfloat16, **options):
    return torch.autocast("cpu", dtype=dtype, **options)


@pytest.mark.parametrize("dtype", LOW)
def test_inputs_are_cast_to_the_ops_own_dtype(op_name, dtype):
    op = dtype_op(op_name, autocast=dtype)
    with cpu_autocast():
        assert op(torch.ones(2)).dtype == dtype


def test_autocast_is_off_inside_the_body(op_name):
    @opforge.op(op_name(), autocast=torch.bfloat16)
    def op(x: Tensor) -> Tensor:
        y = torch.ones(2, 2)
        return (y @ y) + 0 * x.float().sum()

    with cpu_autocast():
        assert op(torch.ones(2)).dtype == torch.float32


def test_lists_optionals_fields_and_keywords_are_cast(op_name):
    seen = []

    @opforge.op(op_name(), autocast=torch.bfloat16)
    def op(
        items: list[Tensor], cfg: Weights, absent: Tensor | None, sizes: list[int], *, bias: Tensor
    ) -> Tensor:
        seen.extend([*(t.dtype for t in items), cfg.weight.dtype, bias.dtype, sizes])
        return bias + 1

    one = torch.ones(2)
    with cpu_autocast():
        op([one, one.int(), one.double()], Weights(one, 2.0), None, [3, 4], bias=one)
    wanted = [torch.bfloat16, torch.int32, torch.float64]
    assert seen == [*wanted, torch.bfloat16, torch.bfloat16, [3, 4]]


def test_a_gradient_comes_back_in_the_inputs_dtype(op_name):
    def setup_context(ctx, inputs, output):
        ctx.dtype = inputs[0].dtype

    def backward(ctx, grad):
        assert ctx.dtype == torch.bfloat16
        return grad * 2

    op = dtype_op(op_name, autocast=torch.bfloat16, backward=backward, setup_context=setup_context)
    x = torch.ones(2, requires_grad=True)
    with cpu_autocast():
        y = op(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert x.grad.dtype == torch.float32
    assert x.grad.tolist() == [2.0, 2.0]


def test_autocast_works_in_and_around_a_compiled_function(op_name):
    op = dtype_op(op_name, autocast=torch.bfloat16)

    def inside(x):
        with cpu_autocast():
            return op(x) + 0

    compiled = torch.compile(inside, backend="aot_eager", fullgraph=True)
    assert compiled(torch.ones(2)).dtype == torch.bfloat16
    compiled = torch.compile(lambda x: op(x) + 0, backend="aot_eager", fullgraph=True)
    with cpu_autocast():
        assert compiled(torch.ones(2)).dtype == torch.bfloat16
    assert compiled(torch.ones(2)).dtype == torch.float32


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        (torch.int32, "torch.int32 is not a floating-point dtype"),
        ({"cpu": "int8"}, "'int8' is not a floating-point dtype"),
        ({"toaster": torch.float16}, "no autocast for device 'toaster'"),
        ({3: torch.float16}, "no autocast for device 3"),
        ({"cuda:0": torch.float16}, "no autocast for device 'cuda:0'"),
    ],
    ids=str,
)
def test_a_wrong_option_is_refused(op_name, option, reason):
    name = op_name()
    with pytest.raises(BadOption) as caught:
        dtype_op(lambda: name, autocast=option)
    text = str(caught.value)
    assert reason in text
    assert name in text
