"""Every launch of a body becomes a node of the graph, however the body reaches its kernel."""

import dataclasses

import pytest
import torch
import triton
import triton.language as tl
from torch.library import wrap_triton
from triton.tools.tensor_descriptor import TensorDescriptor

import opforge
from support.launching import (
    CONFIGS,
    affine,
    biased,
    blocks,
    body_of,
    compiled_graph_of,
    double,
    double_described,
    double_in_place,
    graph_of,
    guessed,
    guessed_over_tuned,
    innermost,
    launches,
    no_gpu,
    split,
    tuned,
    tuned_other,
    tuned_over_guessed,
    with_defaults,
)

Tensor = torch.Tensor
x = torch.ones(8, 128)


@pytest.fixture
def traced(op_name):
    """The launches in the graph of a body that was made an op."""

    def trace(body, *args, **options):
        op = opforge.op(body, name=op_name(), **options)
        assert opforge.info(op).mode == "triton_op"
        return launches(graph_of(op, *(args or (x,))))

    return trace


@pytest.fixture
def launched(traced):
    """The node of a launch that writes the body's output."""

    def trace(launch, **options):
        [node] = traced(body_of(launch), **options)
        return node

    return trace


go = double[(8,)]
wrapped = wrap_triton(double)


class Logged(triton.KernelInterface):
    """A third party's wrapper: it is launched like a kernel, and runs the one inside."""

    def __init__(self, fn):
        self.fn = fn
        self.arg_names = fn.arg_names

    def run(self, *args, grid, warmup, **kwargs):
        return self.fn.run(*args, grid=grid, warmup=warmup, **kwargs)


class Sized(Logged):
    """One that adds arguments of its own."""

    def run(self, x, out, *, grid, warmup, **kwargs):
        return self.fn.run(x, out, x.numel(), BLOCK=128, grid=grid, warmup=warmup, **kwargs)


logged, sized = Logged(Logged(double)), Sized(double)


class Launcher:
    """One that Triton does not recognise as a kernel."""

    def __call__(self, x, out):
        double[(8,)](x, out, x.numel(), BLOCK=128)


FORMS = {
    "subscripted": lambda x, out: double[(8,)](x, out, x.numel(), BLOCK=128),
    "run": lambda x, out: double.run(x, out, x.numel(), BLOCK=128, grid=(8,), warmup=False),
    "by keyword": lambda x, out: double[(8,)](BLOCK=128, n=x.numel(), out_ptr=out, x_ptr=x),
    "by position": lambda x, out: double[(8,)](x, out, x.numel(), 128),
    "grid by function": lambda x, out: double[blocks(x.numel())](x, out, x.numel(), BLOCK=128),
    "constexpr": lambda x, out: double[(8,)](x, out, x.numel(), BLOCK=tl.constexpr(128)),
    "held in a global": lambda x, out: go(x, out, x.numel(), BLOCK=128),
    "wrapped": lambda x, out: wrap_triton(double)[(8,)](x, out, x.numel(), BLOCK=128),
    "wrapped and run": lambda x, out: wrap_triton(double).run(
        x, out, x.numel(), BLOCK=128, grid=(8,), warmup=False
    ),
    "wrapped at module level": lambda x, out: wrapped[(8,)](x, out, x.numel(), BLOCK=128),
    "inside two wrappers": lambda x, out: logged[(8,)](x, out, x.numel(), BLOCK=128),
    "by a wrapper that adds arguments": sized[(8,)],
    "by an object": Launcher(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_launch_is_a_node_with_its_grid_and_arguments(launched, form):
    launch = launched(FORMS[form], kernels=[double])
    assert launch.kernel is double
    assert launch.grid == [(8, 1, 1)]
    assert list(launch.arguments) == ["x_ptr", "out_ptr", "n", "BLOCK"]
    assert launch.arguments["n"] == 1024
    assert launch.arguments["BLOCK"] == 128
    assert type(launch.arguments["BLOCK"]) is int
    assert launch.cloned == ["out_ptr"]


@pytest.fixture(autouse=True)
def wrapped_anew(monkeypatch):
    """torch cannot use what `wrap_triton` returned before a torch._dynamo.reset()."""
    monkeypatch.setitem(globals(), "wrapped", wrap_triton(double))


def test_an_autotuned_kernel_keeps_its_configs(launched):
    launch = launched(lambda x, out: tuned[blocks(x.numel())](x, out, x.numel()))
    assert launch.kernel is tuned
    assert launch.grid == [(8, 1, 1), (4, 1, 1)]
    assert "BLOCK" not in launch.arguments
    assert launch.cloned == ["out_ptr"]


def test_several_autotuned_kernels_stand_in_the_order_of_their_launches(traced):
    def body(x: Tensor, b: Tensor) -> Tensor:
        out, biased_out = torch.empty_like(x), torch.empty_like(x)
        tuned[blocks(x.numel())](x, out, x.numel())
        tuned_other[blocks(x.numel())](out, b, biased_out, x.numel())
        tuned[blocks(x.numel())](biased_out, out, x.numel())
        return out

    found = traced(body, x, x)
    assert [launch.kernel for launch in found] == [tuned, tuned_other, tuned]
    assert [launch.cloned for launch in found] == [["out_ptr"]] * 3


def test_outermost_heuristics_are_evaluated(launched):
    launch = launched(lambda x, out: guessed[blocks(x.numel())](x, out, x.numel()))
    assert launch.kernel is double
    assert launch.arguments["BLOCK"] == 1024
    assert launch.grid == [(1, 1, 1)]
    assert launch.cloned == ["out_ptr"]


def test_an_autotuner_over_heuristics_knows_what_they_set(launched):
    launch = launched(lambda x, out: tuned_over_guessed[blocks(x.numel())](x, out, x.numel()))
    assert launch.kernel.fn is double
    assert [c.num_warps for c in launch.kernel.configs] == [2, 4]
    assert [
        c.kwargs.get("BLOCK", launch.arguments.get("BLOCK")) for c in launch.kernel.configs
    ] == [
        1024,
        1024,
    ]
    assert launch.grid == [(1, 1, 1), (1, 1, 1)]
    assert launch.cloned == ["out_ptr"]


def test_heuristics_over_an_autotuner_are_evaluated_and_its_configs_kept(launched):
    launch = launched(lambda x, out: guessed_over_tuned[blocks(x.numel())](x, out, x.numel()))
    assert launch.kernel.fn is with_defaults
    assert [c.kwargs["BLOCK"] for c in launch.kernel.configs] == [128, 256]
    assert launch.arguments["scale"] == 5
    assert launch.cloned == ["out_ptr"]


@pytest.mark.parametrize("options", [{"num_warps": 2}, {"num_warps": 8, "num_stages": 3}], ids=str)
def test_options_that_torch_carries_reach_the_node(launched, options):
    launch = launched(lambda x, out: double[(8,)](x, out, x.numel(), BLOCK=128, **options))
    [config] = launch.kernel.configs
    assert {name: getattr(config, name) for name in options} == options
    assert innermost(launch.kernel) is double


def test_defaults_of_the_kernel_are_filled_in(launched):
    launch = launched(lambda x, out: with_defaults[blocks(x.numel())](x, out, x.numel()))
    assert (launch.arguments["scale"], launch.arguments["BLOCK"]) == (3, 64)
    assert launch.grid == [(16, 1, 1)]


def test_none_is_an_argument(launched):
    launch = launched(lambda x, out: biased[(8,)](x, None, out, x.numel(), BLOCK=128))
    assert launch.arguments["b_ptr"] is None
    assert launch.cloned == ["out_ptr"]


def test_a_constexpr_may_be_a_tuple(launched):
    launch = launched(
        lambda x, out: affine[(8,)](x, out, x.numel(), (2.0, tl.constexpr(1.0)), BLOCK=128)
    )
    assert launch.arguments["ab"] == (2.0, 1.0)
    assert launch.cloned == ["out_ptr"]


def test_a_descriptor_is_its_tensor_with_a_block_shape(launched):
    def launch_described(x, out):
        described = [TensorDescriptor.from_tensor(t, [8, 32]) for t in (x, out)]
        double_described[(1, 4)](*described, 8, 32)

    launch = launched(launch_described)
    assert sorted(launch.descriptors) == ["out_desc", "x_desc"]
    assert launch.descriptors["x_desc"] == ("stable", ([8, 32],))
    assert launch.arguments["x_desc"].name == "arg0_1"
    assert launch.cloned == ["out_desc"]


def test_a_descriptor_of_another_shape_is_a_view(launched):
    def launch_described(x, out):
        described = [TensorDescriptor(t, [16, 64], [64, 1], [8, 32]) for t in (x, out)]
        double_described[(2, 2)](*described, 8, 32)

    launch = launched(launch_described)
    assert tuple(launch.arguments["x_desc"].meta["val"].shape) == (16, 64)
    assert launch.cloned == ["out_desc"]


@opforge.op("capture_tests::inner")
def inner(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    biased[(8,)](x, None, out, x.numel(), BLOCK=128)
    return out


def test_launches_of_nested_ops_are_nodes_of_the_outer_ones_graph(traced, op_name):
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        double[(8,)](inner(x), out, x.numel(), BLOCK=128)
        return inner(out)

    found = traced(body)
    assert [launch.kernel for launch in found] == [biased, double, biased]
    assert [launch.cloned for launch in found] == [["out_ptr"]] * 3


def test_kernels_of_nested_ops_are_only_in_the_outer_ones_cache_key(op_name):
    name = op_name()

    @opforge.op(name)
    def op(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        double[(8,)](inner(x), out, x.numel(), BLOCK=128)
        return out

    graph_of(op, x)
    assert [ref.kernel for ref in opforge.info(op).kernels] == [double]
    entries = torch._library.triton.triton_ops_to_kernels[name]
    assert double in entries
    assert biased in entries


@dataclasses.dataclass(frozen=True)
class Cfg:
    weight: Tensor
    block: int = 128
    by: float | None = None


def test_a_dataclass_is_rebuilt_for_the_body(op_name):
    @opforge.op(op_name())
    def op(x: Tensor, cfg: Cfg, *, scale: int = 4) -> Tensor:
        out = torch.empty_like(x)
        with_defaults[blocks(x.numel())](cfg.weight, out, x.numel(), scale, BLOCK=cfg.block)
        return out

    [launch] = launches(graph_of(lambda x: op(x, Cfg(x * 2, block=32), scale=6), x))
    assert (launch.arguments["scale"], launch.arguments["BLOCK"]) == (6, 32)
    assert launch.arguments["x_ptr"].target == torch.ops.aten.mul.Tensor
    assert launch.grid == [(32, 1, 1)]


def test_only_real_outputs_are_cloned_with_several_of_them(traced):
    def body(x: Tensor) -> tuple[Tensor, Tensor]:
        low, high = torch.empty_like(x), torch.empty_like(x)
        split[(8,)](x, low, high, x.numel(), BLOCK=128)
        return low, high

    [launch] = traced(body)
    assert launch.cloned == ["low_ptr", "high_ptr"]


def test_a_mutated_input_is_written_back(op_name):
    @opforge.op(op_name(), mutates_args=("x",))
    def op(x: Tensor) -> None:
        double_in_place[(8,)](x, x.numel(), BLOCK=128)

    def function(x):
        op(x)
        return x + 1

    graph = graph_of(function, x)
    [launch] = launches(graph)
    assert launch.cloned == ["x_ptr"]
    [written] = [n for n in graph.graph.nodes if n.name == "getitem"]
    [plus_one] = [n for n in graph.graph.nodes if n.target == torch.ops.aten.add.Tensor]
    assert written.args[1] == "x_ptr"
    assert plus_one.args[0] is written


def test_the_value_of_a_constexpr_is_specialized(op_name):
    @opforge.op(op_name())
    def op(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        double[(1,)](x, out, x.numel(), BLOCK=triton.next_power_of_2(x.numel()))
        return out

    graph = compiled_graph_of(lambda x: op(x) + 1, torch.ones(300), dynamic=True)
    [launch] = launches(graph)
    assert launch.arguments["BLOCK"] == 512


def test_warmup_adds_no_node(op_name):
    @opforge.op(op_name())
    def op(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        double.warmup(x, out, x.numel(), BLOCK=128, grid=(8,))
        tuned.warmup(x, out, x.numel(), grid=(8,))
        biased[(8,)](x, None, out, x.numel(), BLOCK=128)
        return out

    [launch] = launches(graph_of(op, x))
    assert launch.kernel is biased


@no_gpu
def test_using_what_a_warmup_compiled_says_that_there_is_no_gpu(op_name):
    name = op_name()

    @opforge.op(name)
    def op(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        compiled = double.warmup(x, out, x.numel(), BLOCK=128, grid=(8,))
        double[(compiled.n_regs,)](x, out, x.numel(), BLOCK=128)
        return out

    with pytest.raises(
        RuntimeError,
        match=r"the body uses the result of double\.warmup\(\.\.\.\), which only",
    ) as e:
        graph_of(op, x)
    assert name in str(e.value)


def test_the_configs_of_a_kernel_are_not_changed_by_a_trace(launched):
    before = [str(c) for c in CONFIGS]
    launched(lambda x, out: tuned[blocks(x.numel())](x, out, x.numel()))
    assert tuned.configs == CONFIGS
    assert [str(c) for c in CONFIGS] == before
