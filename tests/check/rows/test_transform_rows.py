"""autograd and vmap: each passing, failing and skipped."""

import pytest
import torch
from checking import row
from torch import Tensor

import opforge


def save(ctx, inputs, output):
    ctx.save_for_backward(*[t for t in inputs if isinstance(t, Tensor)])


def double_in_single(x: Tensor) -> Tensor:
    return (x.float().sin() * 2).to(x.dtype)


def product(x: Tensor, y: Tensor) -> Tensor:
    return x * y


def good(ctx, grad):
    x, y = ctx.saved_tensors
    return grad * y, grad * x


def wrong_for_y(ctx, grad):
    x, y = ctx.saved_tensors
    return grad * y, grad * x * 1.5


@pytest.mark.parametrize("shape", [(2, 3), (9, 9), (100, 100)])
def test_a_right_backward_passes_and_a_wrong_one_fails_by_parameter(op_name, shape):
    inputs = torch.randn(shape), torch.randn(shape)
    right = opforge.op(op_name(), backward=good, setup_context=save)(product)
    assert row("autograd", right, *inputs).status == "pass"
    wrong = opforge.op(op_name(), backward=wrong_for_y, setup_context=save)(product)
    found = row("autograd", wrong, *inputs)
    assert found.status == "fail"
    assert found.reason.startswith("the gradient of y is wrong")
    assert "numerical" in found.reason
    assert found.fix == "correct backward="
    assert found.notes == ()


def test_a_wrong_backward_fails_whatever_the_inputs(op_name):
    wrong = opforge.op(op_name(), backward=wrong_for_y, setup_context=save)(product)
    for seed in range(20):
        torch.manual_seed(seed)
        inputs = torch.randn(9, 9), torch.randn(9, 9)
        assert row("autograd", wrong, *inputs).status == "fail", seed


def test_only_inputs_that_require_grad_are_differentiated_where_some_do(op_name):
    op = opforge.op(op_name(), backward=wrong_for_y, setup_context=save)(product)
    inputs = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3)
    assert row("autograd", op, *inputs).status == "pass"


def test_gradients_are_compared_with_the_references(op_name):
    inputs = torch.randn(4, dtype=torch.bfloat16), torch.randn(4, dtype=torch.bfloat16)
    right = opforge.op(op_name(), backward=good, setup_context=save)(product)
    found = row("autograd", right, *inputs, reference=lambda x, y: x * y)
    assert (found.status, found.reason) == ("pass", "as the reference's")
    wrong = opforge.op(op_name(), backward=wrong_for_y, setup_context=save)(product)
    found = row("autograd", wrong, *inputs, reference=lambda x, y: x * y)
    assert found.status == "fail"
    assert found.reason.startswith("gradient of y: off by")


def test_an_op_that_rounds_inside_is_held_to_what_it_can(op_name):
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return (grad.float() * x.float().cos() * 2).to(grad.dtype)

    op = opforge.op(op_name(), backward=backward, setup_context=save)(double_in_single)
    found = row("autograd", op, torch.rand(3, 3))
    assert found.status == "pass"
    assert "less than double" in found.reason
    wrong = opforge.op(
        op_name(), backward=lambda ctx, g: backward(ctx, g) * 1.2, setup_context=save
    )(double_in_single)
    assert row("autograd", wrong, torch.rand(3, 3)).status == "fail"


def test_what_the_backward_raises_is_the_reason(op_name):
    def raising(ctx, grad):
        raise KeyError("nothing saved")

    op = opforge.op(op_name(), backward=raising, setup_context=save)(product)
    found = row("autograd", op, torch.randn(2), torch.randn(2))
    assert found.status == "fail"
    assert "nothing saved" in found.reason


def test_an_op_that_refuses_double_is_skipped_with_the_way_out(op_name):
    @opforge.op(op_name(), backward=good, setup_context=save)
    def single_only(x: Tensor, y: Tensor) -> Tensor:
        if x.dtype is torch.float64:
            raise TypeError("single precision only")
        return x * y

    found = row("autograd", single_only, torch.randn(2), torch.randn(2))
    assert found.status == "skipped"
    assert found.reason == "the op does not take double: TypeError: single precision only"
    assert "reference=" in found.fix


def test_without_backward_or_floats_autograd_is_skipped(op_name):
    found = row("autograd", opforge.op(op_name())(product), torch.randn(2), torch.randn(2))
    assert (found.status, found.reason) == ("skipped", "no backward was given")
    op = opforge.op(op_name(), backward=good, setup_context=save)(product)
    found = row("autograd", op, torch.arange(2), torch.arange(2))
    assert found.reason == "no floating-point input to differentiate by"


def test_inputs_that_are_no_floats_do_not_require_grad(op_name):
    @opforge.op(
        op_name(),
        backward=lambda ctx, g: (g.new_zeros(3).index_add(0, ctx.saved_tensors[1], g), None),
        setup_context=save,
    )
    def pick(x: Tensor, index: Tensor) -> Tensor:
        return x[index]

    assert row("autograd", pick, torch.randn(3), torch.tensor([0, 2])).status == "pass"


def test_vmap_passes_by_torchs_fallback_and_by_a_rule(op_name):
    found = row("vmap", opforge.op(op_name())(product), torch.randn(2, 3), torch.randn(2, 3))
    assert (found.status, found.reason) == ("pass", "torch's own fallback")
    op = opforge.op(op_name(), vmap="sequential")(product)
    assert row("vmap", op, torch.randn(2, 3), torch.randn(2, 3)).status == "pass"


def test_vmap_fails_where_a_slice_differs(op_name):
    op = opforge.op(op_name(), vmap=lambda info, in_dims, x, y: (x * y + 1, 0))(product)
    found = row("vmap", op, torch.zeros(2), torch.zeros(2))
    assert found.status == "fail"
    assert found.reason.startswith("slice 0 of vmap: output[0]: off by 1")
    assert found.fix == "correct vmap=, or vmap='sequential'"


def test_vmap_is_skipped_where_torch_has_no_fallback_and_nothing_to_batch(op_name):
    @opforge.op(op_name(), mutates_args=["x"])
    def increment(x: Tensor) -> None:
        x.add_(1)

    found = row("vmap", increment, torch.zeros(2))
    assert found.reason == "no vmap rule, and torch has no fallback for lists or mutation"
    assert found.fix == "vmap='sequential' gives one"

    @opforge.op(op_name())
    def allocate(n: int) -> Tensor:
        return torch.zeros(n)

    assert row("vmap", allocate, 3).reason == "no tensor input to batch"


def test_vmap_of_what_is_written_in_place_is_compared(op_name):
    @opforge.op(op_name(), mutates_args=["x"], vmap="sequential")
    def increment(x: Tensor) -> None:
        x.add_(1)

    assert row("vmap", increment, torch.zeros(2)).status == "pass"
