"""Sums of two vectors."""

import torch
import triton
import triton.language as tl
from torch import Tensor

import opforge
from opforge import native


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + tl.load(y_ptr + offsets, mask=mask), mask=mask)


@opforge.op("tiny::add")
def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y of two vectors."""
    out, n = torch.empty_like(x), x.numel()
    add_kernel[(triton.cdiv(n, 64),)](x, y, out, n, BLOCK=64)
    return out


native.declare(add, x=native.tensor("n", dtype="fp32"), y=native.tensor("n", dtype="fp32"))
