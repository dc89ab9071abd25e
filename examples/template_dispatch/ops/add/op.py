"""x + y, element by element: contiguous tensors as one row, others by their strides."""

import torch
import triton
import triton.language as tl
from torch import Tensor

import opforge
from opforge import native

from ..common import offset, strides


@triton.jit
def flat_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask)
    y = tl.load(y_ptr + at, mask=mask)
    tl.store(out_ptr + at, x + y, mask=mask)


@triton.jit
def strided_kernel(
    x_ptr, y_ptr, out_ptr, n, columns, x_row, x_column, y_row, y_column, BLOCK: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + offset(at, columns, x_row, x_column), mask=mask)
    y = tl.load(y_ptr + offset(at, columns, y_row, y_column), mask=mask)
    tl.store(out_ptr + at, x + y, mask=mask)


@opforge.op("lab::add_flat")
def add_flat(x: Tensor, y: Tensor) -> Tensor:
    """x + y of two contiguous tensors."""
    out, n = torch.empty_like(x), x.numel()
    flat_kernel[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
    return out


@opforge.op("lab::add")
def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y of two tensors of the same shape."""
    out, n = x.new_empty(x.shape), x.numel()
    grid = (triton.cdiv(n, 1024),)
    strided_kernel[grid](x, y, out, n, x.shape[-1], *strides(x), *strides(y), BLOCK=1024)
    return out


for op, layout in ((add_flat, "contiguous"), (add, "strided")):
    native.declare(
        op,
        x=native.tensor("*s", dtype="T", ranks=(1, 2), layout=layout),
        y=native.tensor("*s", dtype="T", layout=layout),
        T=("fp32", "i32"),
    )
native.implementations(add, add_flat, add)


def reference(x, y):
    return x + y
