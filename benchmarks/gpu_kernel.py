"""What the benchmarks launch: one kernel, bare and as `torch.library.triton_op` wants it."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def double(x_ptr, out_ptr, n, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201  # Triton reads them
    offsets = tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * 2, mask=mask)


def raw(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    double[(1,)](x, out, x.numel(), BLOCK=1024)
    return out


def wrapped(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(double)[(1,)](x, out, x.numel(), BLOCK=1024)
    return out
