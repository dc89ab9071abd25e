"""Ops that checkpointing saves, and ops at which graphs are split."""

import functools

import pytest
import torch
from torch import Tensor
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import opforge
from opforge.errors import BadOption
from support.launching import blocks, double, joint_graph_of, kernel_names

contexts = functools.partial(create_selective_checkpoint_contexts, opforge.checkpoint_policy())


def counted(name, calls, *, sensitive):
    @opforge.op(name, compute_sensitive=sensitive, backward=lambda ctx, grad: grad * 2)
    def op(x: Tensor) -> Tensor:
        calls.append(1)
        return x * 2

    return op


@pytest.mark.parametrize(("sensitive", "runs"), [(False, 2), (True, 1)])
def test_a_compute_sensitive_op_is_not_run_again_in_the_backward(op_name, sensitive, runs):
    calls = []
    op = counted(op_name(), calls, sensitive=sensitive)
    x = torch.randn(4, requires_grad=True)
    out = checkpoint(lambda t: op(t.sin()).cos(), x, use_reentrant=False, context_fn=contexts)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert len(calls) == runs
    torch.testing.assert_close(grad, -(2 * x.sin()).sin() * 2 * x.cos())


def backward_of_launch(ctx, grad):
    return grad * 2


@pytest.mark.parametrize(("sensitive", "again"), [(False, ["double"]), (True, [])])
@pytest.mark.filterwarnings("ignore")
def test_one_that_was_seen_through_is_saved_when_a_checkpointed_region_is_compiled(
    op_name, sensitive, again
):
    @opforge.op(op_name(), compute_sensitive=sensitive, backward=backward_of_launch)
    def op(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        double[blocks(x.numel())](x, out, x.numel(), BLOCK=128)
        return out

    def region(x):
        return checkpoint(lambda t: op(t.sin()).cos(), x, use_reentrant=False, context_fn=contexts)

    graph = joint_graph_of(region, torch.randn(30, requires_grad=True))
    forward, backward = min_cut_rematerialization_partition(graph, [], num_fwd_outputs=1)
    assert kernel_names(forward) == ["double"]
    assert kernel_names(backward) == again


@pytest.fixture
def mixer(op_name):
    @opforge.op(op_name(), subgraph_boundary=True, backward=lambda ctx, grad: grad * 2)
    def mixer(x: Tensor) -> Tensor:
        return x * 2

    return mixer


class Model(torch.nn.Module):
    def __init__(self, mixer):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.mixer = mixer

    def forward(self, x):
        x = self.mixer(torch.relu(self.first(x)))
        x = self.mixer(self.second(x) + x.shape[0])
        return x.sin()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_pieces_give_what_the_whole_gives_for_any_batch(mixer, backend):
    torch._dynamo.reset()
    model, pieces = Model(mixer), opforge.piecewise(backend)
    compiled = torch.compile(model, backend=pieces, fullgraph=True, dynamic=True)
    for rows in (4, 7):
        x = torch.randn(rows, 8, requires_grad=True)
        torch.testing.assert_close(compiled(x), model(x))
        (grad,) = torch.autograd.grad(compiled(x).sum(), x)
        (expected,) = torch.autograd.grad(model(x).sum(), x)
        torch.testing.assert_close(grad, expected)
    assert [piece.boundary for piece in pieces.pieces] == [False, True, False, True, False]


def test_the_parts_between_boundaries_are_compiled_each_on_its_own(mixer):
    torch._dynamo.reset()
    given = []

    def backend(graph, inputs):
        called = [n for n in graph.graph.nodes if n.op in ("call_function", "call_method")]
        given.append([getattr(n.target, "__name__", n.target) for n in called])
        return graph.forward

    compiled = torch.compile(Model(mixer), backend=opforge.piecewise(backend), fullgraph=True)
    compiled(torch.randn(4, 8))
    assert given == [["linear", "relu"], ["linear", "add"], ["sin"]]


def test_a_report_lists_the_pieces(mixer, capsys):
    torch._dynamo.reset()
    backend = opforge.piecewise("eager", report=True)
    torch.compile(Model(mixer), backend=backend, fullgraph=True)(torch.randn(4, 8))
    lines = capsys.readouterr().out.splitlines()
    name = opforge.info(mixer).name.partition("::")[2]
    assert lines == [
        "submod_0  compiled: linear, relu",
        f"submod_1  called as it is: {name}.default",
        "submod_2  compiled: linear, add",
        f"submod_3  called as it is: {name}.default",
        "submod_4  compiled: sin",
    ]


def test_a_graph_without_boundaries_is_one_piece():
    torch._dynamo.reset()
    backend = opforge.piecewise("eager")
    x = torch.randn(3)
    torch.testing.assert_close(torch.compile(torch.sin, backend=backend)(x), x.sin())
    assert [(piece.name, piece.ops) for piece in backend.pieces] == [("piece_0", ("sin",))]


def test_an_unknown_backend_is_refused_with_the_known_ones():
    with pytest.raises(BadOption, match=r"backend='quick' is not a torch(.|\n)*inductor"):
        opforge.piecewise("quick")
