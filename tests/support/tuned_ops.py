"""An op with an autotuned kernel, as a user's module has it."""

import torch
import triton
import triton.language as tl

import opforge
from opforge import native

BLOCKS = (64, 128, 256)


@triton.autotune([triton.Config({"BLOCK": b}, num_warps=2) for b in BLOCKS], key=["n"])
@triton.jit
def scale_kernel(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * factor, mask=mask)


@opforge.op("tuned_ops::scale")
def scale(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    scale_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n, factor)
    return out


native.declare(
    scale,
    x=native.tensor("n", dtype=("fp32", "fp16")),
    factor=native.scalar("fp32"),
    dims={"n": (0, 2**20)},
)


@triton.jit
def plain_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets))


@opforge.op("tuned_ops::copy")
def copy(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    plain_kernel[(1,)](x, out, BLOCK=16)
    return out


native.declare(copy, x=native.tensor("16", dtype="fp32"))
