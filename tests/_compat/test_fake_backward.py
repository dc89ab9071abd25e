"""Backward passes of fake CUDA tensors, against torch's engine on the CPU."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

import opforge

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the engine itself can run them")


class Halves(torch.autograd.Function):
    """Two outputs, of which one may have no gradient."""

    @staticmethod
    def forward(ctx, x, scale, dim):
        ctx.scale, ctx.dim = scale, dim
        return x[:2] * scale, x[2:] * scale

    @staticmethod
    def backward(ctx, first, second):
        return torch.cat([first, second], ctx.dim) * ctx.scale, None, None


class MaybeLast(torch.autograd.Function):
    """Returns None in place of a state that nobody asked for."""

    @staticmethod
    def forward(ctx, x):
        return x * 2, None

    @staticmethod
    def backward(ctx, grad, last):
        return grad * 2 if last is None else last


def shared(x, weight):
    """Used twice, one output of two unused, and a gradient that changes dtype."""
    first, _ = Halves.apply((x * weight).float(), 2.0, 0)
    return first.sum() + x.mean()


def gradients(device, call):
    x = torch.randn(4, 3, device=device, dtype=torch.bfloat16).requires_grad_()
    weight = torch.randn(3, device=device, dtype=torch.bfloat16).requires_grad_()
    unused = torch.randn(2, device=device).requires_grad_()
    return call(x, weight, unused)


def accumulated(x, weight, unused):
    for _ in range(2):
        shared(x, weight).backward()
    return x.grad, weight.grad, unused.grad


def asked_for(x, weight, unused):
    return torch.autograd.grad(shared(x, weight), (x, weight, unused), allow_unused=True)


def only_some(x, weight, unused):
    shared(x, weight).backward(inputs=[weight])
    return x.grad, weight.grad, unused.grad


def of_gradients(x, weight, unused):
    (first,) = torch.autograd.grad((x * x * weight).sum(), x, create_graph=True)
    return torch.autograd.grad(first.sum(), (x, weight))


def through_the_cpu(x, weight, unused):
    return torch.autograd.grad(shared(x, weight).cpu(), (x, weight))


def of_a_function(x, weight, unused):
    product = torch.func.grad(lambda x, weight: (x * weight).float().sum(), (0, 1))
    return product(x.detach(), weight.detach())


def of_none(x, weight, unused):
    return torch.autograd.grad(MaybeLast.apply(x * weight)[0].sum(), (x, weight))


def _remember(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], inputs[2])


def _go_back(ctx, grad):
    x, weight = ctx.saved_tensors
    return grad * weight, None, (grad * x).sum(0)


@opforge.op(name="fakebackward::scaled", backward=_go_back, setup_context=_remember)
def scaled(x: torch.Tensor, by: float, weight: torch.Tensor) -> torch.Tensor:
    return x * weight * by


def of_an_op(x, weight, unused):
    constant = weight.detach()
    (first,) = torch.autograd.grad(scaled(x, 2.0, constant).sum(), x)
    return first, *torch.autograd.grad(scaled(x, 2.0, weight).sum(), (x, weight))


@pytest.mark.parametrize(
    "call",
    [
        accumulated,
        asked_for,
        only_some,
        of_gradients,
        through_the_cpu,
        of_a_function,
        of_none,
        of_an_op,
    ],
)
def test_gradients_are_those_of_the_engine(call):
    expected = gradients("cpu", call)
    with opforge.target("sm_90"), FakeTensorMode():
        found = gradients("cuda", call)
    assert [g if g is None else (g.shape, g.dtype) for g in found] == [
        g if g is None else (g.shape, g.dtype) for g in expected
    ]
    assert {g.device.type for g in found if g is not None} == {"cuda"}


def test_an_unused_tensor_is_an_error_as_in_torch():
    with opforge.target("sm_90"), FakeTensorMode(), pytest.raises(RuntimeError, match="not used"):
        gradients("cuda", lambda x, w, unused: torch.autograd.grad(shared(x, w), unused))
