"""Arguments of captured launches: what a graph holds is what Triton would have been given."""
# ruff: noqa: PLR0917  # kernels have many parameters

import pytest
import torch
import triton
import triton.language as tl
from torch.export import Dim

import opforge
from support.launching import (
    Module,
    blocks,
    body_of,
    compiled_graph_of,
    double,
    graph_of,
    guessed,
    launches,
    tuned_over_guessed,
    with_defaults,
)

Tensor = torch.Tensor
x = torch.ones(8, 128)


@triton.jit
def relu(value):
    return tl.maximum(value, 0)


@triton.jit
def fused(
    x_ptr,
    out_ptr,
    n,
    alpha,
    flag,
    ACT: tl.constexpr,
    DTYPE: tl.constexpr,
    HOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = ACT(tl.load(x_ptr + offs, mask=offs < n)) * alpha
    if HOW == "twice":
        value = value * 2
    if flag:
        value = value + 1
    tl.store(out_ptr + offs, value.to(DTYPE), mask=offs < n)


@triton.jit
def add_row(x_ptr, row_ptr, out_ptr, stride, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    value = tl.load(x_ptr + tl.program_id(0) * stride + offs)
    tl.store(out_ptr + tl.program_id(0) * stride + offs, value + tl.load(row_ptr + offs))


@pytest.fixture
def traced(op_name):
    def trace(body, *args, **options):
        return launches(graph_of(opforge.op(body, name=op_name(), **options), *(args or (x,))))

    return trace


def test_constexprs_of_any_kind_are_kept(traced):
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x, dtype=torch.float16)
        fused[(8,)](x, out, x.numel(), 0.5, True, relu, tl.float16, "twice", BLOCK=128)
        return out

    [launch] = traced(body)
    assert launch.arguments["ACT"] is relu
    assert launch.arguments["DTYPE"] == tl.float16
    assert launch.arguments["HOW"] == "twice"
    assert (launch.arguments["alpha"], launch.arguments["flag"]) == (0.5, True)
    assert launch.cloned == ["out_ptr"]


@pytest.mark.parametrize(
    ("grid", "found"),
    [
        ((8,), (8, 1, 1)),
        ((8, 2), (8, 2, 1)),
        ((8, 2, 3), (8, 2, 3)),
        ([8, 2], (8, 2, 1)),
        (lambda meta: (meta["BLOCK"],), (128, 1, 1)),
        (lambda meta: [4, 2], (4, 2, 1)),
    ],
)
def test_a_grid_of_any_form_is_kept(traced, grid, found):
    [launch] = traced(body_of(lambda x, out: double[grid](x, out, x.numel(), BLOCK=128)))
    assert launch.grid == [found]


def test_strides_and_views_are_arguments(traced):
    [launch] = traced(
        body_of(lambda x, out: add_row[(4,)](x[2:], x[0], out, x.stride(0), BLOCK=128))
    )
    assert launch.arguments["stride"] == 128
    assert tuple(launch.arguments["x_ptr"].meta["val"].shape) == (6, 128)
    assert tuple(launch.arguments["row_ptr"].meta["val"].shape) == (128,)
    assert launch.cloned == ["out_ptr"]


class Scaled(triton.KernelInterface):
    """A wrapper that chooses an argument for which the kernel has a default."""

    def __init__(self, fn):
        self.fn = fn
        self.arg_names = fn.arg_names

    def run(self, *args, grid, warmup, **kwargs):
        return self.fn.run(*args, scale=7, grid=grid, warmup=warmup, **kwargs)


class Widened(Scaled):
    """One that replaces an argument it was given."""

    def run(self, *args, grid, warmup, **kwargs):
        kwargs["BLOCK"] = 256
        return self.fn.run(*args, grid=grid, warmup=warmup, **kwargs)


scaled, widened = Scaled(with_defaults), Widened(with_defaults)


@pytest.mark.parametrize(
    ("launch", "name", "value"),
    [
        (lambda x, out: scaled[(16,)](x, out, 8), "scale", 7),
        (lambda x, out: widened[(16,)](x, out, 8, BLOCK=128), "BLOCK", 256),
    ],
    ids=["a default", "a replaced argument"],
)
def test_what_a_wrapper_changes_reaches_the_graph(traced, launch, name, value):
    [launch] = traced(body_of(launch), kernels=[with_defaults])
    assert launch.arguments[name] == value


def test_sizes_stay_symbolic_in_an_exported_and_decomposed_program(op_name):
    body = body_of(lambda x, out: double[blocks(x.numel())](x, out, x.numel(), BLOCK=128))
    op = opforge.op(body, name=op_name())
    exported = torch.export.export(
        Module(lambda x: op(x) + 1), (x,), dynamic_shapes=(({0: Dim("rows")},),)
    )
    [launch] = launches(exported.run_decompositions(decompose_custom_triton_ops=True))
    assert isinstance(launch.grid[0][0], torch.fx.Node)
    assert isinstance(launch.arguments["n"], torch.fx.Node)
    assert launch.cloned == ["out_ptr"]


@pytest.mark.parametrize(
    "kernel", [guessed, tuned_over_guessed], ids=["outermost", "below an autotuner"]
)
def test_what_a_heuristic_gives_a_constexpr_is_specialized(op_name, kernel):
    body = body_of(lambda x, out: kernel[blocks(x.numel())](x, out, x.numel()))
    op = opforge.op(body, name=op_name())
    [launch] = launches(compiled_graph_of(lambda x: op(x) + 1, torch.ones(300), dynamic=True))
    configs = getattr(launch.kernel, "configs", [])
    values = [c.kwargs["BLOCK"] for c in configs] or [launch.arguments["BLOCK"]]
    assert all(type(v) is int for v in values)
    assert set(values) == {512}
    assert isinstance(launch.arguments["n"], torch.fx.Node)


def test_an_int_parameter_of_the_op_may_become_symbolic(op_name):
    @opforge.op(op_name())
    def op(x: Tensor, scale: int) -> Tensor:
        out = torch.empty_like(x)
        with_defaults[blocks(x.numel())](x, out, x.numel(), scale)
        return out

    graph = compiled_graph_of(lambda x, n: op(x, n) + 1, x, 5, dynamic=True)
    [launch] = launches(graph)
    assert launch.kernel is with_defaults
    assert launch.arguments["BLOCK"] == 64


reset = triton.autotune([triton.Config({"BLOCK": 128})], key=["n"], reset_to_zero=["out_ptr"])(
    double
)
restored = triton.autotune([triton.Config({"BLOCK": 128})], key=["n"], restore_value=["out_ptr"])(
    double
)


@pytest.mark.parametrize("kernel", [reset, restored], ids=["reset_to_zero", "restore_value"])
def test_autotuners_that_reset_or_restore_are_nodes(traced, kernel):
    [launch] = traced(body_of(lambda x, out: kernel[blocks(x.numel())](x, out, x.numel())))
    assert launch.kernel.fn is double
    assert launch.cloned == ["out_ptr"]


ASKED = []


def fewer(configs, named, **given):
    ASKED.append((sorted(named), sorted(given)))
    return configs[:1]


def slower(**given):
    ASKED.append(given["BLOCK"])
    return given["BLOCK"]


CONFIGS = [triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})]


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
@pytest.mark.parametrize(
    "prune",
    [{"early_config_prune": fewer}, {"perf_model": slower, "top_k": 1}],
    ids=lambda p: next(iter(p)),
)
def test_pruning_is_asked_by_export_as_often_as_by_that_of_triton_op(op_name, prune, strict):
    kernel = triton.autotune(CONFIGS, key=["n"], prune_configs_by=prune)(double)

    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        torch.library.wrap_triton(kernel)[blocks(x.numel())](x, out, n=x.numel())
        return out

    asked = []
    theirs = torch.library.triton_op(op_name(), body, mutates_args=())
    for op in (theirs, opforge.op(body, name=op_name())):
        ASKED.clear()
        torch.export.export(Module(op), (x,), strict=strict)
        asked.append([*ASKED])
    assert asked[0] == asked[1] != []
