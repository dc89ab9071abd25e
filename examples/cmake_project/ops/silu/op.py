"""x * sigmoid(x), element by element."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

import opforge
from opforge import native


@triton.jit
def silu_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    # In 64 bits: the last block may reach beyond 2**31 even if n does not.
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, x / (1 + tl.exp(-x)), mask=mask)


@opforge.op("engine::silu")
def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), element by element."""
    out, n = torch.empty_like(x), x.numel()
    silu_kernel[(triton.cdiv(n, 1024),)](x, out, n, BLOCK=1024)
    return out


native.declare(silu, x=native.tensor("...", dtype=("fp16", "fp32"), ranks=(1, 2)))


def reference(x):
    return functional.silu(x.float()).to(x.dtype)
