"""silu of the first half of each row times the second half, and its gradient."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

import opforge
from opforge import native

from ..rows import FLOATS, dense_rows, expect_floats, expect_shape, half_of, place

BLOCK = 1024


@triton.jit(do_not_specialize=["blocks"])
def silu_and_mul_kernel(
    x_ptr, out_ptr, half: tl.int64, x_row: tl.int64, blocks: tl.int32, BLOCK: tl.constexpr
):
    row, col = place(blocks, BLOCK)
    mask = col < half
    gate = tl.load(x_ptr + row * x_row + col, mask=mask).to(tl.float32)
    up = tl.load(x_ptr + row * x_row + half + col, mask=mask).to(tl.float32)
    tl.store(out_ptr + row * half + col, gate / (1 + tl.exp(-gate)) * up, mask=mask)


@triton.jit(do_not_specialize=["blocks"])
def silu_and_mul_backward_kernel(
    grad_ptr, x_ptr, out_ptr, half: tl.int64, grad_row: tl.int64, x_row: tl.int64,
    blocks: tl.int32, BLOCK: tl.constexpr,
):  # fmt: skip
    row, col = place(blocks, BLOCK)
    mask = col < half
    grad = tl.load(grad_ptr + row * grad_row + col, mask=mask).to(tl.float32)
    gate = tl.load(x_ptr + row * x_row + col, mask=mask).to(tl.float32)
    up = tl.load(x_ptr + row * x_row + half + col, mask=mask).to(tl.float32)
    share = 1 / (1 + tl.exp(-gate))
    out = out_ptr + row * (2 * half) + col
    tl.store(out, grad * up * share * (1 + gate * (1 - share)), mask=mask)
    tl.store(out + half, grad * gate * share, mask=mask)


@opforge.op("ops::silu_and_mul_backward")
def silu_and_mul_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of x, given that of silu_and_mul(x)."""
    expect_floats(grad=grad, x=x)
    half = half_of(x)
    expect_shape("grad", grad, (*x.shape[:-1], half))
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() > 0:
        grad, x = dense_rows(grad), dense_rows(x)
        blocks = triton.cdiv(half, BLOCK)
        silu_and_mul_backward_kernel[(x.shape[0] * blocks,)](
            grad, x, out, half, grad.stride(0), x.stride(0), blocks, BLOCK=BLOCK
        )
    return out


def save(ctx, inputs, output):  # noqa: ARG001  # torch's parameters
    ctx.save_for_backward(inputs[0])


def backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return silu_and_mul_backward(grad, x)


@opforge.op("ops::silu_and_mul", backward=backward, setup_context=save)
def silu_and_mul(x: Tensor) -> Tensor:
    """silu(x[..., :half]) * x[..., half:], where half is half of the last dimension."""
    expect_floats(x=x)
    half = half_of(x)
    out = torch.empty((*x.shape[:-1], half), dtype=x.dtype, device=x.device)
    if x.numel() > 0:
        x = dense_rows(x)
        blocks = triton.cdiv(half, BLOCK)
        silu_and_mul_kernel[(x.shape[0] * blocks,)](x, out, half, x.stride(0), blocks, BLOCK=BLOCK)
    return out


for shape, ranks, layout in (("*s", (1, 3), "contiguous"), ("rows", None, "strided")):
    x = native.tensor(f"{shape} cols", dtype="T", ranks=ranks, layout=layout)
    grad = native.tensor(f"{shape} half", dtype="T", layout=layout)
    native.declare(silu_and_mul, x=x, T=FLOATS)
    native.declare(silu_and_mul_backward, grad=grad, x=x, T=FLOATS)


def silu_and_mul_reference(x):
    gate, up = x.chunk(2, -1)
    return functional.silu(gate) * up


def silu_and_mul_backward_reference(grad, x):
    gate, up = x.chunk(2, -1)
    gates = torch.ops.aten.silu_backward(grad * up, gate)
    return torch.cat([gates, grad * functional.silu(gate)], -1)


def silu_and_mul_inputs():
    return (torch.randn(3, 128),), {}


def silu_and_mul_backward_inputs():
    return (torch.randn(3, 64), torch.randn(3, 128)), {}
