"""Kernels that tests launch, and the resulting graphs, without a GPU."""

from dataclasses import dataclass

import pytest
import torch
import triton
import triton.language as tl
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx

import opforge

Tensor = torch.Tensor
WRAPPERS = (
    torch.ops.higher_order.triton_kernel_wrapper_functional,
    torch.ops.higher_order.triton_kernel_wrapper_mutation,
)
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="speaks of machines without a GPU")


@triton.jit
def double(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * 2, mask=offs < n)


@triton.jit
def with_defaults(x_ptr, out_ptr, n, scale=3, BLOCK: tl.constexpr = 64):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * scale, mask=offs < n)


@triton.jit
def biased(x_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + offs, mask=offs < n)
    if b_ptr is not None:
        value += tl.load(b_ptr + offs, mask=offs < n)
    tl.store(out_ptr + offs, value, mask=offs < n)


@triton.jit
def affine(x_ptr, out_ptr, n, ab: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + offs, mask=offs < n) * ab[0] + ab[1]
    tl.store(out_ptr + offs, value, mask=offs < n)


@triton.jit
def affine_at_run_time(x_ptr, out_ptr, n, ab, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + offs, mask=offs < n) * ab[0] + ab[1]
    tl.store(out_ptr + offs, value, mask=offs < n)


@triton.jit
def split(x_ptr, low_ptr, high_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(low_ptr + offs, value - 1, mask=offs < n)
    tl.store(high_ptr + offs, value + 1, mask=offs < n)


@triton.jit
def double_in_place(x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * 2, mask=offs < n)


@triton.jit
def fill(out_ptr, n, value, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.zeros([BLOCK], tl.float32) + value, mask=offs < n)


@triton.jit
def double_described(x_desc, out_desc, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.program_id(0) * M, tl.program_id(1) * N
    out_desc.store([i, j], x_desc.load([i, j]) * 2)


@triton.jit
def impure(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + offs, mask=offs < n)
    value = tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [value], dtype=tl.float32, is_pure=False, pack=1
    )
    tl.store(out_ptr + offs, value, mask=offs < n)


CONFIGS = [triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256}, num_warps=8)]
tuned = triton.autotune(CONFIGS, key=["n"])(double)
tuned_other = triton.autotune([triton.Config({"BLOCK": 32})], key=["n"])(biased)
guessed = triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})(double)
tuned_over_guessed = triton.autotune(
    [triton.Config({}, num_warps=2), triton.Config({}, num_warps=4)], key=["n"]
)(guessed)
guessed_over_tuned = triton.heuristics({"scale": lambda args: 5 if args["n"] > 9 else 7})(
    triton.autotune(CONFIGS, key=["n"])(with_defaults)
)


def blocks(n):
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


def body_of(launch):
    """A body that makes one launch and returns what it writes."""

    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        launch(x, out)
        return out

    return body


@dataclass(frozen=True)
class Launch:
    """A launch as a graph holds it."""

    kernel: object
    grid: list
    arguments: dict
    cloned: list
    descriptors: dict


def launches(graph_module):
    """The launches in a graph, in order."""
    return [_launch(n) for n in graph_module.graph.nodes if n.target in WRAPPERS]


def _launch(node):
    given = node.kwargs
    constants = kernel_side_table.get_constant_args(given["constant_args_idx"])
    return Launch(
        kernel_side_table.get_kernel(given["kernel_idx"]),
        list(given["grid"]),
        {**constants, **given["kwargs"]},
        list(given.get("tensors_to_clone", ())),
        dict(given["tma_descriptor_metadata"]),
    )


def kernel_names(graph_module):
    return [innermost(launch.kernel).__name__ for launch in launches(graph_module)]


def innermost(kernel):
    while not isinstance(kernel, triton.JITFunction):
        kernel = kernel.fn
    return kernel


def targets(graph_module):
    return [n.target for n in graph_module.graph.nodes if n.op == "call_function"]


def graph_of(fn, *args, functional=True, device="cuda"):
    """The graph that AOTAutograd would get; tensors become fake ones on a GPU."""
    with opforge.target("sm_90"), FakeTensorMode():
        fakes = [_fake(a, device) for a in args]
        traced = dispatch_functionalize(fn) if functional else fn
        return make_fx(traced)(*fakes)


def _fake(value, device):
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


class Kept(Exception):
    """The graph was kept; nothing needs to be compiled."""


def compiled_graph_of(fn, *args, **options):
    """The graph that a backend of torch.compile gets."""
    return _kept_by("fw_compiler", fn, *args, **options)


def joint_graph_of(fn, *args):
    """The graph of forward and backward together, as torch.compile makes it."""
    return _kept_by("partition_fn", fn, *args)


def _kept_by(part, fn, *args, **options):
    from torch._dynamo.backends.common import aot_autograd  # noqa: PLC0415  # it takes a second

    graphs = []

    def keep(graph_module, *_args, **_kwargs):
        graphs.append(graph_module)
        raise Kept

    torch._dynamo.reset()
    backend = aot_autograd(**{"fw_compiler": keep, part: keep})
    compiled = torch.compile(fn, backend=backend, fullgraph=True, **options)
    try:
        compiled(*args)
    except Exception:
        if not graphs:
            raise
    return graphs[0]


class Module(torch.nn.Module):
    """A function as a module, for torch.export."""

    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, *args):
        return self.fn(*args)
