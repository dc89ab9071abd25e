"""Rows less their mean, divided by their standard deviation, times a weight, plus a bias."""

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
def layer_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, hidden: tl.int64, x_row: tl.int64, eps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    mask = col < hidden
    x = tl.load(x_ptr + row * x_row + col, mask=mask, other=0.0).to(tl.float32)
    out = tl.load(weight_ptr + col, mask=mask, other=0.0).to(tl.float32)
    x = tl.where(mask, x - tl.sum(x, axis=0) / hidden, 0.0)
    out *= x * tl.rsqrt(tl.sum(x * x, axis=0) / hidden + tl.cast(eps, tl.float32))
    if bias_ptr is not None:
        out += tl.load(bias_ptr + col, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * hidden + col, out, mask=mask)


@triton.jit
def mean_and_scale(x_ptr, hidden, eps, BLOCK: tl.constexpr):
    """The mean of a row and 1 / its standard deviation, from one reading in pieces.

    Each lane has a mean and squares about it (Welford's), so that no large sums are subtracted.
    """
    mean, squares = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    count = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, hidden, BLOCK):
        col = start + tl.arange(0, BLOCK).to(tl.int64)
        x = tl.load(x_ptr + col, mask=col < hidden, other=0.0).to(tl.float32)
        apart = tl.where(col < hidden, x - mean, 0.0)
        count += tl.where(col < hidden, 1.0, 0.0)
        mean += apart / tl.maximum(count, 1.0)
        squares += apart * (x - mean)
    middle = tl.sum(mean * count, axis=0) / hidden
    squares += count * (mean - middle) * (mean - middle)
    return middle, tl.rsqrt(tl.sum(squares, axis=0) / hidden + tl.cast(eps, tl.float32))


@triton.jit
def layer_norm_pieces_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, hidden: tl.int64, x_row: tl.int64, eps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    x_ptr += tl.program_id(0).to(tl.int64) * x_row
    out_ptr += tl.program_id(0).to(tl.int64) * hidden
    mean, scale = mean_and_scale(x_ptr, hidden, eps, BLOCK)
    for start in range(0, hidden, BLOCK):
        col = start + tl.arange(0, BLOCK).to(tl.int64)
        mask = col < hidden
        out = (tl.load(x_ptr + col, mask=mask).to(tl.float32) - mean) * scale
        out *= tl.load(weight_ptr + col, mask=mask).to(tl.float32)
        if bias_ptr is not None:
            out += tl.load(bias_ptr + col, mask=mask).to(tl.float32)
        tl.store(out_ptr + col, out, mask=mask)


# One kernel for any number of rows: they take no part in addressing.
@triton.jit(do_not_specialize=["rows"])
def layer_norm_backward_kernel(
    grad_ptr, x_ptr, weight_ptr, out_ptr, parts_ptr, rows: tl.int64, hidden: tl.int64,
    grad_row: tl.int64, x_row: tl.int64, eps, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradients of some rows, and their share of those of the weight and the bias."""
    col = tl.arange(0, BLOCK)
    mask = col < hidden
    weight = tl.load(weight_ptr + col, mask=mask, other=0.0).to(tl.float32)
    of_weight, of_bias = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    part, parts = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    for row in range(part, rows, parts):
        x = tl.load(x_ptr + row * x_row + col, mask=mask, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + row * grad_row + col, mask=mask, other=0.0).to(tl.float32)
        x = tl.where(mask, x - tl.sum(x, axis=0) / hidden, 0.0)
        scale = tl.rsqrt(tl.sum(x * x, axis=0) / hidden + tl.cast(eps, tl.float32))
        normed, inner = x * scale, grad * weight
        slope = tl.sum(inner * normed, axis=0) / hidden
        value = scale * (inner - tl.sum(inner, axis=0) / hidden - normed * slope)
        tl.store(out_ptr + row * hidden + col, value, mask=mask)
        of_weight += grad * normed
        of_bias += grad
    tl.store(parts_ptr + part * hidden + col, of_weight, mask=mask)
    tl.store(parts_ptr + (parts + part) * hidden + col, of_bias, mask=mask)


@triton.jit
def layer_norm_backward_pieces_kernel(
    grad_ptr, x_ptr, weight_ptr, out_ptr, means_ptr, scales_ptr, hidden: tl.int64,
    grad_row: tl.int64, x_row: tl.int64, eps, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of a row, and its mean and scale for weight_parts_kernel."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_row
    grad_ptr += row * grad_row
    mean, scale = mean_and_scale(x_ptr, hidden, eps, BLOCK)
    tl.store(means_ptr + row, mean)
    tl.store(scales_ptr + row, scale)
    inners, products = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for start in range(0, hidden, BLOCK):
        col = start + tl.arange(0, BLOCK).to(tl.int64)
        mask = col < hidden
        inner = tl.load(grad_ptr + col, mask=mask, other=0.0).to(tl.float32)
        inner *= tl.load(weight_ptr + col, mask=mask, other=0.0).to(tl.float32)
        inners += inner
        products += inner * (tl.load(x_ptr + col, mask=mask, other=0.0).to(tl.float32) - mean)
    shift = tl.sum(inners, axis=0) / hidden
    slope = tl.sum(products, axis=0) * scale / hidden
    for start in range(0, hidden, BLOCK):
        col = start + tl.arange(0, BLOCK).to(tl.int64)
        mask = col < hidden
        normed = (tl.load(x_ptr + col, mask=mask).to(tl.float32) - mean) * scale
        inner = tl.load(grad_ptr + col, mask=mask).to(tl.float32)
        inner *= tl.load(weight_ptr + col, mask=mask).to(tl.float32)
        value = scale * (inner - shift - normed * slope)
        tl.store(out_ptr + row * hidden + col, value, mask=mask)


@opforge.op("ops::layer_norm_backward")
def layer_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias, given that of layer_norm(x, weight, bias, eps)."""
    expect_floats(grad=grad, x=x, weight=weight)
    expect_shape("grad", grad, x.shape)
    expect_shape("weight", weight, x.shape[-1:])
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return (
            out,
            torch.zeros(weight.shape, dtype=weight.dtype, device=x.device),
            torch.zeros(weight.shape, dtype=weight.dtype, device=x.device),
        )
    out_weight = torch.empty(weight.shape, dtype=weight.dtype, device=x.device)
    out_bias = torch.empty(weight.shape, dtype=weight.dtype, device=x.device)
    grad, x, weight = dense_rows(grad), dense_rows(x), weight.contiguous()
    rows, hidden = x.shape
    # Python's min would ask which is less, and a library would have paths for both.
    count = torch.sym_min(rows, PARTS)
    parts = torch.empty((2 * count, hidden), dtype=torch.float32, device=x.device)
    strides = (grad.stride(0), x.stride(0))
    if hidden <= LONGEST:
        block, warps = row_block(hidden)
        layer_norm_backward_kernel[(count,)](
            grad, x, weight, out, parts, rows, hidden, *strides, eps, BLOCK=block, num_warps=warps
        )
    else:
        means = torch.empty((rows,), dtype=torch.float32, device=x.device)
        scales = torch.empty((rows,), dtype=torch.float32, device=x.device)
        layer_norm_backward_pieces_kernel[(rows,)](
            grad, x, weight, out, means, scales, hidden, *strides, eps, BLOCK=PIECE, num_warps=8
        )
        blocks = triton.cdiv(hidden, 1024)
        weight_parts_kernel[(count * blocks,)](
            grad, x, means, scales, parts, rows, hidden, *strides, blocks, count, BLOCK=1024
        )
    weight_sum_kernel[(triton.cdiv(hidden, 32), 2)](
        parts, out_weight, out_bias, hidden, count, ROWS=64, BLOCK=32
    )
    return out, out_weight, out_bias


def save(ctx, inputs, output):  # noqa: ARG001  # torch's parameters
    x, weight, bias, ctx.eps = inputs
    ctx.has_bias = bias is not None
    ctx.save_for_backward(x, weight)


def backward(ctx, grad):
    out, weight, bias = layer_norm_backward(grad, *ctx.saved_tensors, ctx.eps)
    return out, weight, bias if ctx.has_bias else None, None


@opforge.op("ops::layer_norm", backward=backward, setup_context=save)
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Each row of x less its mean, over its standard deviation, times weight, plus bias."""
    expect_floats(x=x, weight=weight)
    expect_rows(x)
    expect_shape("weight", weight, x.shape[-1:])
    if bias is not None:
        expect_floats(bias=bias)
        expect_shape("bias", bias, x.shape[-1:])
        bias = bias.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() > 0:
        x, weight = dense_rows(x), weight.contiguous()
        rows, hidden = x.shape
        given = (x, weight, bias, out, hidden, x.stride(0), eps)
        if hidden <= LONGEST:
            block, warps = row_block(hidden)
            layer_norm_kernel[(rows,)](*given, BLOCK=block, num_warps=warps)
        else:
            layer_norm_pieces_kernel[(rows,)](*given, BLOCK=PIECE, num_warps=8)
    return out


compact = native.tensor("*s hidden", dtype="T", ranks=(1, 3))
strided = native.tensor("rows hidden", dtype="T", layout="strided")
weight = native.tensor("hidden", dtype="T")
eps = native.scalar("fp32")
for given in (compact, strided):
    native.declare(
        layer_norm, x=given, weight=weight, bias=native.optional(weight), eps=eps, T=FLOATS
    )
    native.declare(layer_norm_backward, grad=given, x=given, weight=weight, eps=eps, T=FLOATS)


def layer_norm_reference(x, weight, bias=None, eps=1e-5):
    return functional.layer_norm(x, weight.shape, weight, bias, eps)


def layer_norm_backward_reference(grad, x, weight, eps=1e-5):
    x = x - x.mean(-1, keepdim=True)
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    normed, inner = x * scale, grad * weight
    slope = (inner * normed).mean(-1, keepdim=True)
    out = scale * (inner - inner.mean(-1, keepdim=True) - normed * slope)
    return out, (grad * normed).sum_to_size(weight.shape), grad.sum_to_size(weight.shape)


def layer_norm_inputs():
    return (torch.randn(3, 128), torch.randn(128), torch.randn(128)), {}


def layer_norm_backward_inputs():
    return (torch.randn(3, 128), torch.randn(3, 128), torch.randn(128)), {}
