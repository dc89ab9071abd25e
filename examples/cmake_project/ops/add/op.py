"""x + y, element by element."""

import torch
import triton
import triton.language as tl
from torch import Tensor

import opforge
from opforge import native


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    # In 64 bits: the last block may reach beyond 2**31 even if n does not.
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)


@opforge.op("engine::add")
def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y of two tensors of the same shape."""
    out, n = torch.empty_like(x), x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
    return out


native.declare(
    add,
    x=native.tensor("*s", dtype="T", ranks=(1, 2)),
    y=native.tensor("*s", dtype="T"),
    T=("fp16", "fp32"),
)


def reference(x, y):
    return x + y
