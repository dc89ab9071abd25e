"""Operators whose launches need what GPUs have from sm_90 on."""

import torch
import triton
import triton.language as tl
from torch import Tensor

import opforge
from opforge import native


@triton.jit
def described_kernel(x_ptr, out_ptr, rows, cols, BLOCK: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [rows, cols], [cols, 1], [BLOCK, BLOCK])
    out = tl.make_tensor_descriptor(out_ptr, [rows, cols], [cols, 1], [BLOCK, BLOCK])
    at = [tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK]
    out.store(at, x.load(at) * 2)


@opforge.op("hopper::described")
def described(x: Tensor) -> Tensor:
    """Twice x through descriptors in the launch's scratch memory."""
    rows, cols = x.shape
    out = torch.empty_like(x)
    grid = (triton.cdiv(rows, 32), triton.cdiv(cols, 32))
    described_kernel[grid](x, out, rows, cols, BLOCK=32)
    return out


native.declare(
    described,
    x=native.tensor("rows cols", dtype="fp16"),
    dims={"rows": (1, 4096), "cols": [64, 4096]},
)


@triton.jit
def square_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x * x, mask=mask)


@opforge.op("hopper::clustered")
def clustered(x: Tensor) -> Tensor:
    """x * x by clusters of two blocks each."""
    out, n = torch.empty_like(x), x.numel()
    square_kernel[(triton.cdiv(n, 512),)](x, out, n, BLOCK=512, num_ctas=2)
    return out


native.declare(clustered, x=native.tensor("n", dtype="fp32"), dims={"n": (0, 1 << 20)})


@opforge.op("hopper::cooperative")
def cooperative(x: Tensor) -> Tensor:
    """x * x by a grid whose programs all run at once."""
    out, n = torch.empty_like(x), x.numel()
    grid = (triton.cdiv(n, 512),)
    square_kernel[grid](x, out, n, BLOCK=512, launch_cooperative_grid=True)
    return out


native.declare(cooperative, x=native.tensor("n", dtype="fp32"), dims={"n": (0, 1 << 16)})
