"""Ops of plain torch code on a real GPU: eager, autograd, compile, autocast."""

import dataclasses
import warnings

import pytest
import torch
from torch import Tensor

import opforge


@dataclasses.dataclass(frozen=True)
class Scale:
    weight: Tensor
    factor: float = 2.0


def save(ctx, inputs, output):
    x, cfg = inputs
    ctx.save_for_backward(x, cfg.weight)
    ctx.factor = cfg.factor


def scale_backward(ctx, grad):
    x, weight = ctx.saved_tensors
    return grad * weight * ctx.factor, {"weight": (grad * x * ctx.factor).sum(0)}


@pytest.fixture
def scale(op_name):
    @opforge.op(op_name(), backward=scale_backward, setup_context=save)
    def scale(x: Tensor, cfg: Scale) -> Tensor:
        return x * cfg.weight * cfg.factor

    return scale


def test_an_op_with_a_dataclass_runs_and_differentiates_on_cuda(scale):
    x = torch.randn(4, 8, device="cuda", dtype=torch.double, requires_grad=True)
    weight = torch.randn(8, device="cuda", dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: scale(x, Scale(w, 3.0)), (x, weight))


def test_it_compiles_to_one_graph_on_cuda_with_dynamic_shapes(scale):
    compiled = torch.compile(scale, fullgraph=True, dynamic=True)
    weight = torch.randn(8, device="cuda")
    for rows in (4, 9):
        x = torch.randn(rows, 8, device="cuda", requires_grad=True)
        out = compiled(x, Scale(weight))
        torch.testing.assert_close(out, x * weight * 2)
        (grad,) = torch.autograd.grad(out.sum(), x)
        torch.testing.assert_close(grad, (weight * 2).expand_as(x))


def test_autocast_casts_cuda_inputs(op_name):
    seen = []

    @opforge.op(op_name(), autocast=torch.float16)
    def halved(x: Tensor) -> Tensor:
        seen.append(x.dtype)
        return x * 0.5

    with torch.autocast("cuda"):
        halved(torch.randn(4, device="cuda"))
    assert seen == [torch.float16]


def test_a_kernel_from_elsewhere_for_cuda_replaces_the_body_there_only(op_name):
    name = op_name()

    @opforge.op(name, backward=lambda ctx, grad: grad)
    def one(x: Tensor) -> Tensor:
        return torch.ones_like(x)

    x = torch.zeros(3, device="cuda")
    assert one(x).tolist() == [1, 1, 1]
    torch.library.register_kernel(name, "cuda", lambda x: torch.full_like(x, 7))
    assert one(x).tolist() == [7, 7, 7]
    assert one(x.cpu()).tolist() == [1, 1, 1]


def test_opcheck_passes_on_cuda(scale):
    x = torch.randn(4, 8, device="cuda", requires_grad=True)
    weight = torch.randn(8, device="cuda", requires_grad=True)
    torch.library.opcheck(opforge.info(scale).overload, (x, weight, 2.0))


def test_mutation_on_cuda_is_functionalized_right(op_name):
    @opforge.op(op_name(), mutates_args=["x"])
    def bump(x: Tensor) -> None:
        x.add_(1)

    def run(x):
        y = x.clone()
        bump(y)
        return y * 2

    x = torch.randn(5, device="cuda")
    version = x._version
    bump(x)
    assert x._version > version
    torch.testing.assert_close(torch.compile(run, fullgraph=True)(x), (x + 1) * 2)


def test_going_backward_without_a_backward_raises_on_cuda(op_name):
    @opforge.op(op_name())
    def half(x: Tensor) -> Tensor:
        return x.sin() + x

    x = torch.randn(3, device="cuda", requires_grad=True)
    out = half(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="has no backward"):
            out.sum().backward()
    assert x.grad is None
