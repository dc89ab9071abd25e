"""Operators for the tests of opforge.load on a GPU: few variants, so that they build quickly."""

import torch
import triton
import triton.language as tl
from torch import Tensor

import opforge
from opforge import native

FLOATS = ("fp16", "fp32")


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + tl.load(y_ptr + offsets, mask=mask), mask=mask)


@opforge.op("gpu_load::add")
def add(x: Tensor, y: Tensor) -> Tensor:
    x, y = x.contiguous(), y.contiguous()
    out, n = torch.empty_like(x), x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
    return out


native.declare(
    add,
    x=native.tensor("*s", dtype="T", ranks=(1, 2)),
    y=native.tensor("*s", dtype="T"),
    T=FLOATS,
)


@triton.jit
def scale_kernel(x_ptr, out_ptr, factor, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * factor, mask=mask)


def save(ctx, inputs, output):
    ctx.factor = inputs[1]


def scale_backward(ctx, grad):
    return scale(grad, ctx.factor), None


@opforge.op("gpu_load::scale", backward=scale_backward, setup_context=save)
def scale(x: Tensor, factor: float = 2.0) -> Tensor:
    x = x.contiguous()
    out, n = torch.empty_like(x), x.numel()
    scale_kernel[(triton.cdiv(n, 1024),)](x, out, factor, n, BLOCK=1024)
    return out


native.declare(scale, x=native.tensor("n", dtype="fp32"), factor=native.scalar("fp32"))


@opforge.op("gpu_load::scale_", mutates_args=("x",))
def scale_(x: Tensor, factor: float) -> None:
    scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, x, factor, x.numel(), BLOCK=1024)


native.declare(scale_, x=native.tensor("n", dtype="fp32"), factor=native.scalar("fp32"))


@opforge.op("gpu_load::total")
def total(x: Tensor) -> Tensor:
    """Needs workspace, for what it scales."""
    scaled, n = torch.empty_like(x), x.numel()
    scale_kernel[(triton.cdiv(n, 1024),)](x, scaled, 0.5, n, BLOCK=1024)
    return scaled.sum()


native.declare(total, x=native.tensor("n", dtype="fp32"))
