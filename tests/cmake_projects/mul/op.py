"""An operator added to examples/template_dispatch, which no C++ there knows."""

import torch
import triton
import triton.language as tl
from torch import Tensor

import opforge
from opforge import native


@triton.jit
def mul_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    product = tl.load(x_ptr + at, mask=mask) * tl.load(y_ptr + at, mask=mask)
    tl.store(out_ptr + at, product, mask=mask)


@opforge.op("lab::mul")
def mul(x: Tensor, y: Tensor) -> Tensor:
    """x * y of two vectors."""
    out, n = torch.empty_like(x), x.numel()
    mul_kernel[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
    return out


native.declare(mul, x=native.tensor("n", dtype="fp32"), y=native.tensor("n", dtype="fp32"))
