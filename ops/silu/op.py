"""x * sigmoid(x), element by element, and its gradient."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

import opforge
from opforge import native

from ..rows import FLOATS, expect_floats, expect_shape, place, spans

BLOCK = 1024


@triton.jit(do_not_specialize=["blocks"])
def silu_kernel(
    x_ptr, out_ptr, cols: tl.int64, x_row: tl.int64, blocks: tl.int32, BLOCK: tl.constexpr
):
    row, col = place(blocks, BLOCK)
    mask = col < cols
    x = tl.load(x_ptr + row * x_row + col, mask=mask).to(tl.float32)
    tl.store(out_ptr + row * cols + col, x / (1 + tl.exp(-x)), mask=mask)


@triton.jit(do_not_specialize=["blocks"])
def silu_backward_kernel(
    grad_ptr, x_ptr, out_ptr, cols: tl.int64, grad_row: tl.int64, x_row: tl.int64,
    blocks: tl.int32, BLOCK: tl.constexpr,
):  # fmt: skip
    row, col = place(blocks, BLOCK)
    mask = col < cols
    grad = tl.load(grad_ptr + row * grad_row + col, mask=mask).to(tl.float32)
    x = tl.load(x_ptr + row * x_row + col, mask=mask).to(tl.float32)
    gate = 1 / (1 + tl.exp(-x))
    tl.store(out_ptr + row * cols + col, grad * gate * (1 + x * (1 - gate)), mask=mask)


@opforge.op("ops::silu_backward")
def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of x, given that of silu(x)."""
    expect_floats(grad=grad, x=x)
    expect_shape("grad", grad, x.shape)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() > 0:
        rows, cols, (grad, x), (grad_row, x_row) = spans(grad, x)
        blocks = triton.cdiv(cols, BLOCK)
        silu_backward_kernel[(rows * blocks,)](
            grad, x, out, cols, grad_row, x_row, blocks, BLOCK=BLOCK
        )
    return out


def save(ctx, inputs, output):  # noqa: ARG001  # torch's parameters
    ctx.save_for_backward(inputs[0])


def backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return silu_backward(grad, x)


@opforge.op("ops::silu", backward=backward, setup_context=save)
def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), element by element; the result is contiguous."""
    expect_floats(x=x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() > 0:
        rows, cols, (x,), (x_row,) = spans(x)
        blocks = triton.cdiv(cols, BLOCK)
        silu_kernel[(rows * blocks,)](x, out, cols, x_row, blocks, BLOCK=BLOCK)
    return out


compact = native.tensor("*s", dtype="T", ranks=(0, 1, 3, 4))
strided = native.tensor("rows cols", dtype="T", layout="strided")
for given in (compact, strided):
    native.declare(silu, x=given, T=FLOATS)
    native.declare(silu_backward, grad=given, x=given, T=FLOATS)


def silu_reference(x):
    return functional.silu(x)


def silu_backward_reference(grad, x):
    return torch.ops.aten.silu_backward(grad, x)


def silu_inputs():
    return (torch.randn(3, 128),), {}


def silu_backward_inputs():
    return (torch.randn(3, 128), torch.randn(3, 128)), {}
