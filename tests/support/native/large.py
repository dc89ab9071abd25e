"""An operator that needs more shared memory than a kernel gets unasked, or than AMD's GPUs have."""

import torch
import triton
import triton.language as tl
from torch import Tensor

import opforge
from opforge import native


@triton.jit
def large_kernel(a_ptr, b_ptr, out_ptr, k, SIDE: tl.constexpr, DEPTH: tl.constexpr):
    side, depth = tl.arange(0, SIDE), tl.arange(0, DEPTH)
    total = tl.zeros((SIDE, SIDE), tl.float32)
    for start in range(0, k, DEPTH):
        at = start + depth
        a = tl.load(a_ptr + side[:, None] * k + at[None, :], mask=at[None, :] < k, other=0.0)
        b = tl.load(b_ptr + at[:, None] * SIDE + side[None, :], mask=at[:, None] < k, other=0.0)
        total = tl.dot(a, b, total)
    tl.store(out_ptr + side[:, None] * SIDE + side[None, :], total)


@opforge.op("large::large")
def large(a: Tensor, b: Tensor) -> Tensor:
    """A product of 128 rows and columns."""
    out = torch.empty((128, 128), dtype=torch.float32, device=a.device)
    large_kernel[(1,)](a, b, out, a.shape[1], SIDE=128, DEPTH=64, num_warps=8, num_stages=4)
    return out


native.declare(
    large,
    a=native.tensor("128 k", dtype="fp16"),
    b=native.tensor("k 128", dtype="fp16"),
    dims={"k": (0, 4096)},
)
