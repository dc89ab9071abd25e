"""x * sigmoid(x), element by element."""

import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

import opforge
from opforge import native

from ..common import offset, strides


@triton.jit
def silu_kernel(x_ptr, out_ptr, n, columns, row_stride, column_stride, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + offset(at, columns, row_stride, column_stride), mask=mask).to(tl.float32)
    tl.store(out_ptr + at, x / (1 + tl.exp(-x)), mask=mask)


@opforge.op("lab::silu")
def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x) of a tensor of any strides."""
    out, n = x.new_empty(x.shape), x.numel()
    silu_kernel[(triton.cdiv(n, 1024),)](x, out, n, x.shape[-1], *strides(x), BLOCK=1024)
    return out


native.declare(silu, x=native.tensor("...", dtype=("bf16", "fp32"), ranks=(1, 2), layout="strided"))


def reference(x):
    return functional.silu(x.float()).to(x.dtype)
