"""autograd: passing, failing and skipped."""

import re

import pytest
import torch
from torch import Tensor

import opforge
from support.checking import row


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
    assert re.search(r"numerical \S+ \S+ \S+, analytical", found.reason)
    assert found.fix.startswith("correct backward=")
    assert found.notes == ()


def no_gradient_for_y(ctx, grad):
    _, y = ctx.saved_tensors
    return grad * y, None


@pytest.mark.parametrize("shape", [(2, 3), (8, 128), (128, 128)])
def test_a_gradient_that_is_left_out_fails_whatever_the_size(op_name, shape):
    op = opforge.op(op_name(), backward=no_gradient_for_y, setup_context=save)(product)
    x, y = torch.randn(shape), torch.randn(shape)
    found = row("autograd", op, x, y)
    assert found.status == "fail"
    assert found.reason.startswith("the gradient of y is wrong")
    assert "analytical 0." in found.reason
    assert "let only the others require grad" in found.fix
    assert row("autograd", op, x.requires_grad_(), y).status == "pass"


def mean(x: Tensor) -> Tensor:
    return x.mean()


def test_small_gradients_are_held_to_their_own_size(op_name):
    def spread(ctx, grad):
        (x,) = ctx.saved_tensors
        return (grad / x.numel()).expand(x.shape).clone()

    x = torch.randn(1024, 1024)
    right = opforge.op(op_name(), backward=spread, setup_context=save)(mean)
    assert row("autograd", right, x).status == "pass"
    zero = opforge.op(op_name(), backward=lambda ctx, g: 0 * spread(ctx, g), setup_context=save)
    assert row("autograd", zero(mean), x).status == "fail"


@pytest.mark.parametrize("shape", [(8, 128), (1024, 1024)])
def test_single_precision_inside_does_not_hide_a_wrong_factor_at_any_size(op_name, shape):
    torch.manual_seed(0)

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return (grad.float() * x.float().cos() * 2).to(grad.dtype)

    right = opforge.op(op_name(), backward=backward, setup_context=save)(double_in_single)
    assert row("autograd", right, torch.randn(shape)).status == "pass"
    wrong = opforge.op(
        op_name(), backward=lambda ctx, g: backward(ctx, g) * 1.1, setup_context=save
    )(double_in_single)
    assert row("autograd", wrong, torch.randn(shape)).status == "fail"


@pytest.mark.parametrize("shape", [(4, 4), (8, 128), (128, 128)])
def test_half_precision_inside_is_skipped_with_the_way_out(op_name, shape):
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].exp()

    @opforge.op(op_name(), backward=backward, setup_context=save)
    def exp(x: Tensor) -> Tensor:
        return x.bfloat16().exp().to(x.dtype)

    found = row("autograd", exp, torch.randn(shape))
    assert found.status == "skipped"
    assert "less than single precision" in found.reason
    assert "reference=" in found.fix


def test_gradients_are_compared_with_the_references(op_name):
    inputs = torch.randn(4, dtype=torch.bfloat16), torch.randn(4, dtype=torch.bfloat16)
    right = opforge.op(op_name(), backward=good, setup_context=save)(product)
    found = row("autograd", right, *inputs, reference=lambda x, y: x * y)
    assert (found.status, found.reason) == ("pass", "equal to the reference's")
    wrong = opforge.op(op_name(), backward=wrong_for_y, setup_context=save)(product)
    found = row("autograd", wrong, *inputs, reference=lambda x, y: x * y)
    assert found.status == "fail"
    assert found.reason.startswith("gradient of y: ")


def test_the_error_of_the_backward_is_the_reason(op_name):
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
    assert found.reason == "the op does not accept float64: TypeError: single precision only"
    assert "reference=" in found.fix


def test_without_floats_autograd_is_skipped(op_name):
    op = opforge.op(op_name(), backward=good, setup_context=save)(product)
    found = row("autograd", op, torch.arange(2), torch.arange(2))
    assert found.reason == "there is no floating-point input to differentiate"


def test_inputs_that_are_not_floats_do_not_require_grad(op_name):
    @opforge.op(
        op_name(),
        backward=lambda ctx, g: (g.new_zeros(3).index_add(0, ctx.saved_tensors[1], g), None),
        setup_context=save,
    )
    def pick(x: Tensor, index: Tensor) -> Tensor:
        return x[index]

    assert row("autograd", pick, torch.randn(3), torch.tensor([0, 2])).status == "pass"


def by_memory(ctx, grad):
    """Like a kernel that assumes a contiguous gradient."""
    x, y = ctx.saved_tensors
    grad = grad.as_strided(x.shape, x.stride())
    return grad * y, grad * x


def by_view(ctx, grad):
    x, y = ctx.saved_tensors
    grad = grad.view(-1).view(x.shape)
    return grad * y, grad * x


@pytest.mark.parametrize("reference", [None, product])
@pytest.mark.parametrize(
    ("backward", "reason"),
    [
        (by_memory, "with a non-contiguous gradient, gradient of x: "),
        (by_view, "with a non-contiguous gradient: RuntimeError: view size is not"),
    ],
)
def test_a_backward_must_take_gradients_that_are_not_contiguous(
    op_name, backward, reason, reference
):
    op = opforge.op(op_name(), backward=backward, setup_context=save)(product)
    found = row("autograd", op, torch.randn(3, 4), torch.randn(3, 4), reference=reference)
    assert found.status == "fail"
    assert found.reason.startswith(reason)
    assert ".contiguous()" in found.fix


def normed(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A norm and its scale, computed in single precision; the scale's gradient is small."""
    wide = x.float()
    scale = (wide.square().mean(-1) + 1e-5).rsqrt()
    return (wide * scale[:, None] * weight.float()).to(x.dtype), scale.to(x.dtype)


def normed_backward(ctx, grad, grad_scale):
    with torch.enable_grad():
        inputs = [t.detach().requires_grad_() for t in ctx.saved_tensors]
        return torch.autograd.grad(normed(*inputs), inputs, [grad, grad_scale])


def dropping_the_second(ctx, grad, grad_scale):
    return normed_backward(ctx, grad, torch.zeros_like(grad_scale))


@pytest.mark.parametrize("shape", [(2, 8), (8, 128), (64, 256)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reference", [None, normed])
def test_each_output_is_tried_by_itself(op_name, shape, dtype, reference):
    inputs = torch.randn(shape, dtype=dtype), torch.randn(shape[1], dtype=dtype)
    right = opforge.op(op_name(), backward=normed_backward, setup_context=save)(normed)
    found = row("autograd", right, *inputs, reference=reference)
    assert found.status == "pass", found
    wrong = opforge.op(op_name(), backward=dropping_the_second, setup_context=save)(normed)
    found = row("autograd", wrong, *inputs, reference=reference)
    assert found.status == "fail", found
    assert "gradient of x through output[1]" in found.reason
    if reference is None:
        assert "ctx.mark_non_differentiable in setup_context=" in found.fix


@pytest.mark.parametrize("reference", [None, normed])
def test_an_output_that_is_marked_non_differentiable_is_left_out(op_name, reference):
    def marking(ctx, inputs, output):
        save(ctx, inputs, output)
        ctx.mark_non_differentiable(output[1])

    op = opforge.op(op_name(), backward=dropping_the_second, setup_context=marking)(normed)
    assert (
        row("autograd", op, torch.randn(8, 32), torch.randn(32), reference=reference).status
        == "pass"
    )


def test_a_backward_that_refuses_one_output_alone_fails_with_its_name(op_name):
    def unmaterialized(ctx, inputs, output):
        save(ctx, inputs, output)
        ctx.set_materialize_grads(False)

    op = opforge.op(op_name(), backward=dropping_the_second, setup_context=unmaterialized)(normed)
    found = row("autograd", op, torch.randn(8, 32), torch.randn(32))
    assert found.status == "fail"
    assert found.reason.startswith("with a gradient through output[0] alone: ")


def test_an_output_in_half_precision_does_not_keep_the_others_from_being_tried(op_name):
    def both(ctx, grad, grad_rough):
        (x,) = ctx.saved_tensors
        return grad * x.cos() * ctx.factor + grad_rough

    def body(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x.bfloat16().to(x.dtype)

    for factor, status in ((1.0, "pass"), (1.1, "fail")):

        def keep(ctx, inputs, output, factor=factor):
            save(ctx, inputs, output)
            ctx.factor = factor

        op = opforge.op(op_name(), backward=both, setup_context=keep)(body)
        found = row("autograd", op, torch.randn(4, 64))
        assert found.status == status
        if status == "pass":
            (note,) = found.notes
            assert note.startswith("not tried: output[1], computed in less than single precision")


def test_a_gradient_that_is_not_a_number_fails(op_name):
    op = opforge.op(op_name(), backward=lambda ctx, g: (g * torch.nan, g), setup_context=save)
    found = row("autograd", op(product), torch.randn(9, 9), torch.ones(9, 9))
    assert found.status == "fail"
    assert "analytical nan" in found.reason


def test_a_complex_output_is_tried_by_its_parts(op_name):
    def body(x: Tensor) -> Tensor:
        return torch.complex(x.sin(), x * 3)

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad.real * x.cos() + grad.imag * 3

    right = opforge.op(op_name(), backward=backward, setup_context=save)(body)
    assert row("autograd", right, torch.randn(9, 9)).status == "pass"
    wrong = opforge.op(
        op_name(), backward=lambda ctx, g: backward(ctx, g.real + 0j), setup_context=save
    )
    assert row("autograd", wrong(body), torch.randn(9, 9)).status == "fail"
