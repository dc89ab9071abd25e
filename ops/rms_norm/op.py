"""Rows divided by the root of their mean square, times a weight, and the gradients."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

import opforge
from opforge import native

from ..norm_sums import PARTS, PIECE, weight_parts_kernel, weight_sum_kernel
from ..rows import FLOATS, LONGEST, dense_rows, expect_floats, expect_rows, expect_shape, row_block


# Compiled code passes floats in double precision, hence the casts.
@triton.jit
def rms_norm_kernel(
    x_ptr, weight_ptr, out_ptr, hidden: tl.int64, x_row: tl.int64, eps, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    mask = col < hidden
    x = tl.load(x_ptr + row * x_row + col, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + col, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / hidden + tl.cast(eps, tl.float32))
    tl.store(out_ptr + row * hidden + col, x * scale * weight, mask=mask)


@triton.jit
def rms_norm_pieces_kernel(
    x_ptr, weight_ptr, out_ptr, hidden: tl.int64, x_row: tl.int64, eps, BLOCK: tl.constexpr
):
    x_ptr += tl.program_id(0).to(tl.int64) * x_row
    out_ptr += tl.program_id(0).to(tl.int64) * hidden
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, hidden, BLOCK):
        col = start + tl.arange(0, BLOCK).to(tl.int64)
        x = tl.load(x_ptr + col, mask=col < hidden, other=0.0).to(tl.float32)
        total += x * x
    scale = tl.rsqrt(tl.sum(total, axis=0) / hidden + tl.cast(eps, tl.float32))
    for start in range(0, hidden, BLOCK):
        col = start + tl.arange(0, BLOCK).to(tl.int64)
        x = tl.load(x_ptr + col, mask=col < hidden).to(tl.float32)
        weight = tl.load(weight_ptr + col, mask=col < hidden).to(tl.float32)
        tl.store(out_ptr + col, x * scale * weight, mask=col < hidden)


# One kernel for any number of rows: they take no part in addressing.
@triton.jit(do_not_specialize=["rows"])
def rms_norm_backward_kernel(
    grad_ptr, x_ptr, weight_ptr, out_ptr, parts_ptr, rows: tl.int64, hidden: tl.int64,
    grad_row: tl.int64, x_row: tl.int64, eps, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradients of some rows, and their share of the weight's gradient."""
    col = tl.arange(0, BLOCK)
    mask = col < hidden
    weight = tl.load(weight_ptr + col, mask=mask, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        x = tl.load(x_ptr + row * x_row + col, mask=mask, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + row * grad_row + col, mask=mask, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x, axis=0) / hidden + tl.cast(eps, tl.float32))
        normed, inner = x * scale, grad * weight
        mean = tl.sum(inner * normed, axis=0) / hidden
        tl.store(out_ptr + row * hidden + col, scale * (inner - normed * mean), mask=mask)
        total += grad * normed
    tl.store(parts_ptr + tl.program_id(0).to(tl.int64) * hidden + col, total, mask=mask)


@triton.jit
def rms_norm_backward_pieces_kernel(
    grad_ptr, x_ptr, weight_ptr, out_ptr, scales_ptr, hidden: tl.int64,
    grad_row: tl.int64, x_row: tl.int64, eps, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of a row, and its scale for weight_parts_kernel."""
    row = tl.program_id(0).to(tl.int64)
    squares, products = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for start in range(0, hidden, BLOCK):
        col = start + tl.arange(0, BLOCK).to(tl.int64)
        mask = col < hidden
        x = tl.load(x_ptr + row * x_row + col, mask=mask, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + row * grad_row + col, mask=mask, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + col, mask=mask, other=0.0).to(tl.float32)
        squares += x * x
        products += x * grad * weight
    scale = tl.rsqrt(tl.sum(squares, axis=0) / hidden + tl.cast(eps, tl.float32))
    mean = tl.sum(products, axis=0) * scale / hidden
    tl.store(scales_ptr + row, scale)
    for start in range(0, hidden, BLOCK):
        col = start + tl.arange(0, BLOCK).to(tl.int64)
        mask = col < hidden
        x = tl.load(x_ptr + row * x_row + col, mask=mask).to(tl.float32)
        grad = tl.load(grad_ptr + row * grad_row + col, mask=mask).to(tl.float32)
        weight = tl.load(weight_ptr + col, mask=mask).to(tl.float32)
        value = scale * (grad * weight - x * scale * mean)
        tl.store(out_ptr + row * hidden + col, value, mask=mask)


@opforge.op("ops::rms_norm_backward")
def rms_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """The gradients of x and of weight, given that of rms_norm(x, weight, eps)."""
    expect_floats(grad=grad, x=x, weight=weight)
    expect_shape("grad", grad, x.shape)
    expect_shape("weight", weight, x.shape[-1:])
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return out, torch.zeros(weight.shape, dtype=weight.dtype, device=x.device)
    out_weight = torch.empty(weight.shape, dtype=weight.dtype, device=x.device)
    grad, x, weight = dense_rows(grad), dense_rows(x), weight.contiguous()
    rows, hidden = x.shape
    # Python's min would ask which is less, and a library would have paths for both.
    count = torch.sym_min(rows, PARTS)
    parts = torch.empty((count, hidden), dtype=torch.float32, device=x.device)
    strides = (grad.stride(0), x.stride(0))
    if hidden <= LONGEST:
        block, warps = row_block(hidden)
        rms_norm_backward_kernel[(count,)](
            grad, x, weight, out, parts, rows, hidden, *strides, eps, BLOCK=block, num_warps=warps
        )
    else:
        scales = torch.empty((rows,), dtype=torch.float32, device=x.device)
        rms_norm_backward_pieces_kernel[(rows,)](
            grad, x, weight, out, scales, hidden, *strides, eps, BLOCK=PIECE, num_warps=8
        )
        blocks = triton.cdiv(hidden, 1024)
        weight_parts_kernel[(count * blocks,)](
            grad, x, None, scales, parts, rows, hidden, *strides, blocks, count, BLOCK=1024
        )
    weight_sum_kernel[(triton.cdiv(hidden, 32), 1)](
        parts, out_weight, None, hidden, count, ROWS=64, BLOCK=32
    )
    return out, out_weight


def save(ctx, inputs, output):  # noqa: ARG001  # torch's parameters
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def backward(ctx, grad):
    return (*rms_norm_backward(grad, *ctx.saved_tensors, ctx.eps), None)


@opforge.op("ops::rms_norm", backward=backward, setup_context=save)
def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Each row of x divided by the root of its mean square, times weight."""
    expect_floats(x=x, weight=weight)
    expect_rows(x)
    expect_shape("weight", weight, x.shape[-1:])
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() > 0:
        x, weight = dense_rows(x), weight.contiguous()
        rows, hidden = x.shape
        given = (x, weight, out, hidden, x.stride(0), eps)
        if hidden <= LONGEST:
            block, warps = row_block(hidden)
            rms_norm_kernel[(rows,)](*given, BLOCK=block, num_warps=warps)
        else:
            rms_norm_pieces_kernel[(rows,)](*given, BLOCK=PIECE, num_warps=8)
    return out


compact = native.tensor("*s hidden", dtype="T", ranks=(1, 3))
strided = native.tensor("rows hidden", dtype="T", layout="strided")
weight = native.tensor("hidden", dtype="T")
eps = native.scalar("fp32")
for given in (compact, strided):
    native.declare(rms_norm, x=given, weight=weight, eps=eps, T=FLOATS)
    native.declare(rms_norm_backward, grad=given, x=given, weight=weight, eps=eps, T=FLOATS)


def rms_norm_reference(x, weight, eps=1e-6):
    return functional.rms_norm(x, weight.shape, weight, eps)


def rms_norm_backward_reference(grad, x, weight, eps=1e-6):
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    normed, inner = x * scale, grad * weight
    out = scale * (inner - normed * (inner * normed).mean(-1, keepdim=True))
    return out, (grad * normed).sum_to_size(weight.shape)


def rms_norm_inputs():
    return (torch.randn(3, 128), torch.randn(128)), {}


def rms_norm_backward_inputs():
    return (torch.randn(3, 128), torch.randn(3, 128), torch.randn(128)), {}
