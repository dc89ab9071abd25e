"""Softmax over the last dimension, of any length, and its gradient."""

import torch
import triton
import triton.language as tl
from torch import Tensor

import opforge
from opforge import native

from ..rows import FLOATS, LONGEST, dense_rows, expect_floats, expect_rows, expect_shape, row_block

PIECE = 4096


@triton.jit
def softmax_kernel(x_ptr, out_ptr, cols: tl.int64, x_row: tl.int64, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    mask = col < cols
    x = tl.load(x_ptr + row * x_row + col, mask=mask, other=float("-inf")).to(tl.float32)
    shares = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * cols + col, shares / tl.sum(shares, axis=0), mask=mask)


@triton.jit
def softmax_pieces_kernel(x_ptr, out_ptr, cols: tl.int64, x_row: tl.int64, BLOCK: tl.constexpr):
    x_ptr += tl.program_id(0).to(tl.int64) * x_row
    out_ptr += tl.program_id(0).to(tl.int64) * cols
    highest = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK).to(tl.int64)
        x = tl.load(x_ptr + col, mask=col < cols, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(highest, x)
        # A lane that has seen nothing but -inf would be scaled by exp(-inf + inf).
        known = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(highest - known) + tl.exp(x - known)
        highest = higher
    top = tl.max(highest, axis=0)
    scale = 1 / tl.sum(total * tl.exp(highest - top), axis=0)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK).to(tl.int64)
        x = tl.load(x_ptr + col, mask=col < cols).to(tl.float32)
        tl.store(out_ptr + col, tl.exp(x - top) * scale, mask=col < cols)


@triton.jit
def softmax_backward_kernel(
    grad_ptr, y_ptr, out_ptr, cols: tl.int64, grad_row: tl.int64, y_row: tl.int64,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    mask = col < cols
    grad = tl.load(grad_ptr + row * grad_row + col, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + row * y_row + col, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(grad * y, axis=0)
    tl.store(out_ptr + row * cols + col, y * (grad - mean), mask=mask)


@triton.jit
def softmax_backward_pieces_kernel(
    grad_ptr, y_ptr, out_ptr, cols: tl.int64, grad_row: tl.int64, y_row: tl.int64,
    BLOCK: tl.constexpr,
):  # fmt: skip
    grad_ptr += tl.program_id(0).to(tl.int64) * grad_row
    y_ptr += tl.program_id(0).to(tl.int64) * y_row
    out_ptr += tl.program_id(0).to(tl.int64) * cols
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK).to(tl.int64)
        grad = tl.load(grad_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
        total += grad * y
    mean = tl.sum(total, axis=0)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK).to(tl.int64)
        grad = tl.load(grad_ptr + col, mask=col < cols).to(tl.float32)
        y = tl.load(y_ptr + col, mask=col < cols).to(tl.float32)
        tl.store(out_ptr + col, y * (grad - mean), mask=col < cols)


@opforge.op("ops::softmax_backward")
def softmax_backward(grad: Tensor, y: Tensor) -> Tensor:
    """The gradient of x, given y = softmax(x) and the gradient of y."""
    expect_floats(grad=grad, y=y)
    expect_shape("grad", grad, y.shape)
    out = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    if y.numel() > 0:
        grad, y = dense_rows(grad), dense_rows(y)
        rows, cols = y.shape
        given = (grad, y, out, cols, grad.stride(0), y.stride(0))
        if cols <= LONGEST:
            block, warps = row_block(cols)
            softmax_backward_kernel[(rows,)](*given, BLOCK=block, num_warps=warps)
        else:
            softmax_backward_pieces_kernel[(rows,)](*given, BLOCK=PIECE, num_warps=8)
    return out


def save(ctx, inputs, output):  # noqa: ARG001  # torch's parameters
    ctx.save_for_backward(output)


def backward(ctx, grad):
    (y,) = ctx.saved_tensors
    return softmax_backward(grad, y)


@opforge.op("ops::softmax", backward=backward, setup_context=save)
def softmax(x: Tensor) -> Tensor:
    """Softmax over the last dimension, of any length; the result is contiguous."""
    expect_floats(x=x)
    expect_rows(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() > 0:
        x = dense_rows(x)
        rows, cols = x.shape
        if cols <= LONGEST:
            block, warps = row_block(cols)
            softmax_kernel[(rows,)](x, out, cols, x.stride(0), BLOCK=block, num_warps=warps)
        else:
            softmax_pieces_kernel[(rows,)](x, out, cols, x.stride(0), BLOCK=PIECE, num_warps=8)
    return out


compact = native.tensor("*s cols", dtype="T", ranks=(1, 3))
strided = native.tensor("rows cols", dtype="T", layout="strided")
for given in (compact, strided):
    native.declare(softmax, x=given, T=FLOATS)
    native.declare(softmax_backward, grad=given, y=given, T=FLOATS)


def softmax_reference(x):
    return torch.softmax(x, -1)


def softmax_backward_reference(grad, y):
    return y * (grad - (grad * y).sum(-1, keepdim=True))


def softmax_inputs():
    return (torch.randn(3, 128),), {}


def softmax_backward_inputs():
    return (torch.randn(3, 128), torch.softmax(torch.randn(3, 128), -1)), {}
