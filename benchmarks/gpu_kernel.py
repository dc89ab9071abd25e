"""The kernel that the benchmarks launch, bare and as a `torch.library.triton_op`."""

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


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201  # as above
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x, y = tl.load(x_ptr + offsets, mask=mask), tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)
