"""Operators with what came with sm_90: tensor descriptors, clusters, dependent launches, Gluon."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

import opforge
from opforge import native

# Triton 3.8 gave them these names.
load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@triton.jit
def twice_kernel(x_desc, out_desc, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.program_id(0) * M, tl.program_id(1) * N
    x = x_desc.load([i, j])
    out_desc.store([i, j], (x.to(tl.float32) * 2).to(x.dtype))


@opforge.op("hopper::twice")
def twice(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.shape[0], 64), triton.cdiv(x.shape[1], 32))
    given, made = (TensorDescriptor.from_tensor(t, [64, 32]) for t in (x, out))
    twice_kernel[grid](given, made, M=64, N=32)
    return out


native.declare(twice, x=native.tensor("m n", dtype=("fp16", "fp32")))


@opforge.op("hopper::twice_fp8")
def twice_fp8(x: Tensor) -> Tensor:
    return twice(x)


native.declare(twice_fp8, x=native.tensor("m n", dtype="fp8e4nv"))


@opforge.op("hopper::fourfold")
def fourfold(x: Tensor) -> Tensor:
    return twice(twice(x))


native.declare(fourfold, x=native.tensor("m n", dtype="fp16"))


@opforge.op("hopper80::twice_again")
def twice_again(x: Tensor) -> Tensor:
    return twice(x)


native.declare(twice_again, x=native.tensor("m n", dtype="fp16"))


@triton.jit
def edges_kernel(x_desc, out_ptr, stride, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    j = tl.arange(0, BLOCK)
    x = x_desc.load([i, 0, 0]).reshape(BLOCK)
    # Sizes and strides are there, too.
    tl.store(out_ptr + i * stride + j, x + x_desc.shape[2] + x_desc.strides[1])


@opforge.op("hopper::edges")
def edges(x: Tensor) -> Tensor:
    """Blocks that reach beyond the last elements, which count as NaN."""
    out = torch.empty(x.shape[0], 128, dtype=x.dtype, device=x.device)
    described = TensorDescriptor.from_tensor(x, [1, 4, 32], padding="nan")
    edges_kernel[(x.shape[0],)](described, out, out.stride(0), BLOCK=128)
    return out


native.declare(edges, x=native.tensor("a b c", dtype="fp32"), dims={"b": (1, 4), "c": (4, 32)})


def set_blocks(args):
    args["a_desc"].block_shape = [args["M"], args["K"]]
    args["b_desc"].block_shape = [args["K"], args["N"]]
    args["out_desc"].block_shape = [args["M"], args["N"]]


@triton.autotune(
    [triton.Config({"M": 64, "N": 64, "K": 32}, num_warps=4, pre_hook=set_blocks)], key=["k"]
)
@triton.jit
def product_kernel(a_desc, b_desc, out_desc, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):  # noqa: PLR0917
    i, j = tl.program_id(0) * M, tl.program_id(1) * N
    total = tl.full((M, N), 0, tl.float32)
    for at in range(0, k, K):
        total = tl.dot(a_desc.load([i, at]), b_desc.load([at, j]), total)
    out_desc.store([i, j], total.to(tl.float16))


@opforge.op("hopper::product", mode="custom_op")
def product(a: Tensor, b: Tensor) -> Tensor:
    out = a.new_empty(a.shape[0], b.shape[1])
    # The autotuner's hook sets the blocks.
    described = [TensorDescriptor.from_tensor(t, [1, 1]) for t in (a, b, out)]
    product_kernel[
        lambda meta: (triton.cdiv(a.shape[0], meta["M"]), triton.cdiv(b.shape[1], meta["N"]))
    ](*described, a.shape[1])
    return out


native.declare(product, a=native.tensor("m k", dtype="fp16"), b=native.tensor("k n", dtype="fp16"))


@triton.jit
def plain_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


@opforge.op("hopper::anywhere", mode="custom_op")
def anywhere(x: Tensor) -> Tensor:
    """By descriptors where their rules allow it."""
    if x.data_ptr() % 16 == 0:
        return twice(x)
    out = torch.empty_like(x)
    plain_kernel[(triton.cdiv(x.numel(), 512),)](x, out, x.numel(), BLOCK=512)
    return out


native.declare(anywhere, x=native.tensor("m 32", dtype="fp16"))


@triton.jit
def dependent_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.extra.cuda.gdc_wait()
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)
    tl.extra.cuda.gdc_launch_dependents()


@opforge.op("hopper::dependent")
def dependent(x: Tensor) -> Tensor:
    once, out = torch.empty_like(x), torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 512),)
    plain_kernel[grid](x, once, x.numel(), BLOCK=512)
    dependent_kernel[grid](once, out, x.numel(), BLOCK=512, launch_pdl=True)
    return out


@opforge.op("hopper::clustered")
def clustered(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    plain_kernel[(triton.cdiv(x.numel(), 512),)](x, out, x.numel(), BLOCK=512, num_ctas=2)
    return out


@opforge.op("hopper::cooperative")
def cooperative(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 512),)
    plain_kernel[grid](x, out, x.numel(), BLOCK=512, launch_cooperative_grid=True)
    return out


@gluon.jit
def gluon_kernel(x_ptr, out_ptr, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    gl.store(out_ptr + at, gl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


@opforge.op("hopper::glued", mode="custom_op")
def glued(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    gluon_kernel[(triton.cdiv(x.numel(), 512),)](x, out, x.numel(), BLOCK=512)
    return out


for op in (dependent, clustered, cooperative, glued):
    native.declare(op, x=native.tensor("n", dtype="fp32"))


@gluon.jit
def moved_kernel(x_desc, out_desc, M: gl.constexpr, N: gl.constexpr):
    at = [gl.program_id(0) * M, gl.program_id(1) * N]
    held = gl.allocate_shared_memory(x_desc.dtype, [M, N], x_desc.layout)
    arrived = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(arrived, count=1)
    mbarrier.expect(arrived, x_desc.block_type.nbytes)
    load_tile(x_desc, at, arrived, held)
    mbarrier.wait(arrived, 0)
    mbarrier.invalidate(arrived)
    fence_async_shared()
    store_tile(out_desc, at, held)
    tma.store_wait(0)


@opforge.op("hopper::moved", mode="custom_op")
def moved(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    layout = gl.NVMMASharedLayout.get_default_for([64, 32], gl.float16)
    given, made = (GluonDescriptor.from_tensor(t, [64, 32], layout) for t in (x, out))
    grid = (triton.cdiv(x.shape[0], 64), triton.cdiv(x.shape[1], 32))
    moved_kernel[grid](given, made, M=64, N=32)
    return out


native.declare(moved, x=native.tensor("m n", dtype="fp16"))
EVERY = (
    twice,
    twice_fp8,
    fourfold,
    edges,
    product,
    anywhere,
    dependent,
    clustered,
    cooperative,
    glued,
    moved,
)
