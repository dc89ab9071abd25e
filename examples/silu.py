"""SiLU as two Triton kernels: the functions that launch them are the operators."""

import torch
import triton
import triton.language as tl
from torch import Tensor

import opforge
from opforge import native


@triton.jit
def load_wide(pointers, mask):
    """At least in single precision: halves have no exponential."""
    x = tl.load(pointers, mask=mask)
    if x.dtype.primitive_bitwidth < 32:
        x = x.to(tl.float32)
    return x


@triton.jit
def silu_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = load_wide(x_ptr + offsets, mask)
    tl.store(out_ptr + offsets, x / (1 + tl.exp(-x)), mask=mask)


@triton.jit
def silu_backward_kernel(grad_ptr, x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = load_wide(x_ptr + offsets, mask)
    gate = 1 / (1 + tl.exp(-x))
    grad = load_wide(grad_ptr + offsets, mask)
    tl.store(out_ptr + offsets, grad * gate * (1 + x * (1 - gate)), mask=mask)


def grid(n):
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


@opforge.op("examples::silu_backward")
def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """An op of its own, so that differentiating twice says that there is no second derivative."""
    grad, x = grad.contiguous(), x.contiguous()
    out = torch.empty_like(x)
    silu_backward_kernel[grid(x.numel())](grad, x, out, x.numel(), BLOCK=1024)
    return out


def save(ctx, inputs, output):
    (x,) = inputs
    ctx.save_for_backward(x)


def backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return silu_backward(grad, x)


@opforge.op("examples::silu", backward=backward, setup_context=save)
def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), element by element."""
    x = x.contiguous()
    out = torch.empty_like(x)
    silu_kernel[grid(x.numel())](x, out, x.numel(), BLOCK=1024)
    return out


native.declare(silu, x=native.tensor("rows columns", dtype="fp32"))
