"""gelu of the first half of each row times the second half, and its gradient."""

from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

import opforge
from opforge import native

from ..rows import FLOATS, dense_rows, expect_floats, expect_shape, half_of, place

BLOCK = 1024
Approximate = Literal["none", "tanh"]


@triton.jit
def gelu_share(x, TANH: tl.constexpr, HALF: tl.constexpr):
    """What gelu multiplies x by: the normal distribution up to x, or its approximation."""
    if TANH:
        # (1 + tanh(u)) / 2 is the sigmoid of 2 * u.
        return 1 / (1 + tl.exp(-1.5957691216057308 * x * (1 + 0.044715 * x * x)))
    if HALF:
        # Within 1e-7 (Abramowitz and Stegun, 7.1.26), where erf's branches would cost bandwidth.
        t = 1 / (1 + 0.2316418882 * tl.abs(x))
        rest = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (
            -0.7265760135 + t * 0.5307027145))))  # fmt: skip
        rest *= tl.exp(-0.5 * x * x)
        return tl.where(x < 0, rest, 1 - rest)
    return 0.5 * (1 + tl.erf(0.7071067811865476 * x))


@triton.jit
def gelu_slope(x, share, TANH: tl.constexpr):
    """x times the derivative of its share."""
    if TANH:
        inner = 1.5957691216057308 * (1 + 3 * 0.044715 * x * x)
        return x * share * (1 - share) * inner
    return x * 0.3989422804014327 * tl.exp(-0.5 * x * x)


@triton.jit(do_not_specialize=["blocks"])
def gelu_and_mul_kernel(
    x_ptr, out_ptr, half: tl.int64, x_row: tl.int64, blocks: tl.int32, TANH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row, col = place(blocks, BLOCK)
    mask = col < half
    gate = tl.load(x_ptr + row * x_row + col, mask=mask).to(tl.float32)
    up = tl.load(x_ptr + row * x_row + half + col, mask=mask).to(tl.float32)
    value = gate * gelu_share(gate, TANH, x_ptr.dtype.element_ty != tl.float32) * up
    tl.store(out_ptr + row * half + col, value, mask=mask)


@triton.jit(do_not_specialize=["blocks"])
def gelu_and_mul_backward_kernel(
    grad_ptr, x_ptr, out_ptr, half: tl.int64, grad_row: tl.int64, x_row: tl.int64,
    blocks: tl.int32, TANH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, col = place(blocks, BLOCK)
    mask = col < half
    grad = tl.load(grad_ptr + row * grad_row + col, mask=mask).to(tl.float32)
    gate = tl.load(x_ptr + row * x_row + col, mask=mask).to(tl.float32)
    up = tl.load(x_ptr + row * x_row + half + col, mask=mask).to(tl.float32)
    share = gelu_share(gate, TANH, x_ptr.dtype.element_ty != tl.float32)
    out = out_ptr + row * (2 * half) + col
    tl.store(out, grad * up * (share + gelu_slope(gate, share, TANH)), mask=mask)
    tl.store(out + half, grad * gate * share, mask=mask)


@opforge.op("ops::gelu_and_mul_backward")
def gelu_and_mul_backward(grad: Tensor, x: Tensor, approximate: Approximate = "none") -> Tensor:
    """The gradient of x, given that of gelu_and_mul(x, approximate)."""
    expect_floats(grad=grad, x=x)
    half = half_of(x)
    expect_shape("grad", grad, (*x.shape[:-1], half))
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() > 0:
        grad, x = dense_rows(grad), dense_rows(x)
        blocks = triton.cdiv(half, BLOCK)
        gelu_and_mul_backward_kernel[(x.shape[0] * blocks,)](
            grad, x, out, half, grad.stride(0), x.stride(0), blocks,
            TANH=approximate == "tanh", BLOCK=BLOCK,
        )  # fmt: skip
    return out


def save(ctx, inputs, output):  # noqa: ARG001  # torch's parameters
    x, ctx.approximate = inputs
    ctx.save_for_backward(x)


def backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return gelu_and_mul_backward(grad, x, ctx.approximate), None


@opforge.op("ops::gelu_and_mul", backward=backward, setup_context=save)
def gelu_and_mul(x: Tensor, approximate: Approximate = "none") -> Tensor:
    """gelu(x[..., :half]) * x[..., half:], where half is half of the last dimension.

    gelu is exact, or with approximate="tanh" the formula with tanh, as in torch.
    """
    expect_floats(x=x)
    half = half_of(x)
    out = torch.empty((*x.shape[:-1], half), dtype=x.dtype, device=x.device)
    if x.numel() > 0:
        x = dense_rows(x)
        blocks = triton.cdiv(half, BLOCK)
        gelu_and_mul_kernel[(x.shape[0] * blocks,)](
            x, out, half, x.stride(0), blocks, TANH=approximate == "tanh", BLOCK=BLOCK
        )
    return out


for shape, ranks, layout in (("*s", (1, 3), "contiguous"), ("rows", None, "strided")):
    x = native.tensor(f"{shape} cols", dtype="T", ranks=ranks, layout=layout)
    grad = native.tensor(f"{shape} half", dtype="T", layout=layout)
    approximate = native.choice("none", "tanh")
    native.declare(gelu_and_mul, x=x, approximate=approximate, T=FLOATS)
    native.declare(gelu_and_mul_backward, grad=grad, x=x, approximate=approximate, T=FLOATS)


def gelu_and_mul_reference(x, approximate="none"):
    gate, up = x.chunk(2, -1)
    return functional.gelu(gate, approximate=approximate) * up


def gelu_and_mul_backward_reference(grad, x, approximate="none"):
    gate, up = x.chunk(2, -1)
    gates = torch.ops.aten.gelu_backward(grad * up, gate, approximate=approximate)
    return torch.cat([gates, grad * functional.gelu(gate, approximate=approximate)], -1)


def gelu_and_mul_inputs():
    return (torch.randn(3, 128),), {}


def gelu_and_mul_backward_inputs():
    return (torch.randn(3, 64), torch.randn(3, 128)), {}
