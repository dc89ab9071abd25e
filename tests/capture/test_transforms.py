"""Launches are captured under torch.compile: branches, grad, vmap, modes."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import opforge
from support.launching import (
    biased,
    blocks,
    compiled_graph_of,
    double,
    double_in_place,
    joint_graph_of,
    kernel_names,
    launches,
)

Tensor = torch.Tensor


def with_submodules(graph_module):
    """The kernels of a graph and of the graphs of its branches."""
    inner = [m for m in graph_module.children() if isinstance(m, torch.fx.GraphModule)]
    return kernel_names(graph_module) + [n for m in inner for n in with_submodules(m)]


def run_double(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    double[blocks(x.numel())](x, out, x.numel(), BLOCK=128)
    return out


def backward(ctx, grad):
    out = torch.empty_like(grad)
    biased[blocks(grad.numel())](grad, None, out, grad.numel(), BLOCK=64)
    return out


@pytest.fixture
def op(op_name):
    return opforge.op(run_double, name=op_name())


@pytest.fixture
def differentiable(op_name):
    return opforge.op(run_double, name=op_name(), backward=backward)


def test_a_branch_of_cond_is_seen_through(op):
    def function(x):
        return torch.cond(x.sum() > 0, lambda x: op(x) + 1, lambda x: x + 2, (x,))

    assert with_submodules(compiled_graph_of(function, torch.ones(300))) == ["double"]


def test_a_sequential_vmap_launches_once_per_slice(op_name):
    op = opforge.op(run_double, name=op_name(), vmap="sequential")
    graph = compiled_graph_of(lambda x: torch.vmap(op)(x) + 1, torch.ones(3, 30))
    assert kernel_names(graph) == ["double"] * 3
    assert [launch.cloned for launch in launches(graph)] == [["out_ptr"]] * 3


def test_func_grad_goes_back_through_an_op(op, op_name):
    outer = opforge.op(run_double, name=op_name(), backward=lambda ctx, grad: op(grad))

    def function(x):
        return torch.func.grad(lambda x: outer(x).sum())(x)

    assert kernel_names(compiled_graph_of(function, torch.ones(30))) == ["double", "double"]


def test_checkpointing_keeps_the_launches(differentiable):
    given = torch.ones(30, requires_grad=True)

    def function(x):
        return checkpoint(lambda x: differentiable(x).sin(), x, use_reentrant=False)

    assert kernel_names(joint_graph_of(function, given)) == ["double", "biased"]


def test_lists_in_and_out_are_seen_through(op_name):
    @opforge.op(op_name())
    def op(xs: list[Tensor]) -> list[Tensor]:
        outs = [torch.empty_like(x) for x in xs]
        for x, out in zip(xs, outs, strict=True):
            double[blocks(x.numel())](x, out, x.numel(), BLOCK=128)
        return outs

    graph = compiled_graph_of(lambda x: op([x, x * 2, x * 3]), torch.ones(30))
    assert kernel_names(graph) == ["double"] * 3


def test_a_mutated_argument_may_require_grad(op_name):
    @opforge.op(op_name(), mutates_args=("x",))
    def op(x: Tensor) -> None:
        double_in_place[blocks(x.numel())](x, x.numel(), BLOCK=128)

    def function(x):
        doubled = x * 2
        op(doubled)
        return doubled + 1

    graph = compiled_graph_of(function, torch.ones(30, requires_grad=True))
    assert kernel_names(graph) == ["double_in_place"]
