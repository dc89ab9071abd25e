"""Operators for a C library: `opforge build examples/native/ops.py --arch sm_90 -o dist`."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

import opforge
from opforge import native

HALVES = ("fp16", "bf16")
FLOATS = (*HALVES, "fp32")


@triton.jit
def silu_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    # In 64 bits: the last block may reach beyond 2**31 even if n does not.
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, x / (1 + tl.exp(-x)), mask=mask)


@opforge.op("ops::silu")
def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), element by element."""
    x = x.contiguous()
    out, n = torch.empty_like(x), x.numel()
    silu_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n, BLOCK=1024)
    return out


native.declare(silu, x=native.tensor("...", dtype=FLOATS, ranks=(1, 2, 3, 4)))


@triton.jit
def add_kernel(
    x_ptr, y_ptr, out_ptr, cols, x_row, x_col, y_row, y_col, blocks, BLOCK: tl.constexpr
):
    row = (tl.program_id(0) // blocks).to(tl.int64)
    col = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = col < cols
    x = tl.load(x_ptr + row * x_row + col * x_col, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + row * y_row + col * y_col, mask=mask).to(tl.float32)
    tl.store(out_ptr + row * cols + col, x + y, mask=mask)


@opforge.op("ops::add")
def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y of two matrices with any strides; the sum is contiguous."""
    rows, cols = x.shape
    out = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    block = 1024
    blocks = triton.cdiv(cols, block)
    add_kernel[(rows * blocks,)](
        x, y, out, cols, x.stride(0), x.stride(1), y.stride(0), y.stride(1), blocks, BLOCK=block
    )
    return out


native.declare(
    add,
    x=native.tensor("m n", dtype="T", layout="strided"),
    y=native.tensor("m n", dtype="T", layout="strided"),
    T=FLOATS,
)


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, out_ptr, hidden, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * hidden
    cols = tl.arange(0, BLOCK)
    mask = cols < hidden
    x = tl.load(x_ptr + row + cols, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=mask).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / hidden + eps)
    tl.store(out_ptr + row + cols, x * scale * weight, mask=mask)


@opforge.op("ops::rms_norm")
def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Each row divided by the root of its mean square, times weight."""
    x, weight = x.contiguous(), weight.contiguous()
    rows, hidden = x.shape
    out = torch.empty_like(x)
    # All short rows share a block size, so that there are fewer kernels.
    block = triton.next_power_of_2(max(hidden, 1024))
    rms_norm_kernel[(rows,)](x, weight, out, hidden, eps, BLOCK=block)
    return out


native.declare(
    rms_norm,
    x=native.tensor("rows hidden", dtype="T"),
    weight=native.tensor("hidden", dtype="T"),
    eps=native.scalar("fp32"),
    T=FLOATS,
    dims={"hidden": (1, 8192)},
)


@triton.jit
def softmax_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * cols
    offsets = tl.arange(0, BLOCK).to(tl.int64)
    highest = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        mask = start + offsets < cols
        x = tl.load(x_ptr + row + start + offsets, mask=mask, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(highest, x)
        # A lane that has seen nothing but -inf would be scaled by exp(-inf + inf).
        known = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(highest - known) + tl.exp(x - known)
        highest = higher
    top = tl.max(highest, axis=0)
    scale = 1 / tl.sum(total * tl.exp(highest - top), axis=0)
    for start in range(0, cols, BLOCK):
        mask = start + offsets < cols
        x = tl.load(x_ptr + row + start + offsets, mask=mask).to(tl.float32)
        tl.store(out_ptr + row + start + offsets, tl.exp(x - top) * scale, mask=mask)


@opforge.op("ops::softmax")
def softmax(x: Tensor) -> Tensor:
    """Softmax over the last dimension, of any length."""
    x = x.contiguous()
    out = torch.empty_like(x)
    cols = x.shape[-1]
    if x.numel() > 0:
        softmax_kernel[(x.numel() // cols,)](x, out, cols, BLOCK=1024)
    return out


native.declare(softmax, x=native.tensor("... cols", dtype=FLOATS, ranks=(1, 2, 3)))


@triton.jit
def gemm_kernel(
    a_ptr, b_ptr, out_ptr, alpha, m, n, k, a_row, a_col, b_row, b_col, n_tiles,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) // n_tiles).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = (tl.program_id(0) % n_tiles).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K).to(tl.int64)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        at = start + inner
        a = tl.load(
            a_ptr + row[:, None] * a_row + at[None, :] * a_col,
            mask=(row[:, None] < m) & (at[None, :] < k),
            other=0.0,
        )
        b = tl.load(
            b_ptr + at[:, None] * b_row + col[None, :] * b_col,
            mask=(at[:, None] < k) & (col[None, :] < n),
            other=0.0,
        )
        total = tl.dot(a, b, total)
    tl.store(
        out_ptr + row[:, None] * n + col[None, :],
        alpha * total,
        mask=(row[:, None] < m) & (col[None, :] < n),
    )


@opforge.op("ops::gemm")
def gemm(a: Tensor, b: Tensor, alpha: float = 1.0) -> Tensor:
    """alpha * a @ b of two matrices with any strides, summed in single precision."""
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), dtype=a.dtype, device=a.device)
    block_m, block_n, block_k = 64, 64, 32
    n_tiles = triton.cdiv(n, block_n)
    gemm_kernel[(triton.cdiv(m, block_m) * n_tiles,)](
        a, b, out, alpha, m, n, k,
        a.stride(0), a.stride(1), b.stride(0), b.stride(1), n_tiles,
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


native.declare(
    gemm,
    a=native.tensor("m k", dtype="T", layout="strided"),
    b=native.tensor("k n", dtype="T", layout="strided"),
    alpha=native.scalar("fp32"),
    T=HALVES,
)


def silu_reference(x):
    return functional.silu(x.float()).to(x.dtype)


def add_reference(x, y):
    return (x.float() + y.float()).to(x.dtype)


def rms_norm_reference(x, weight, eps=1e-6):
    return functional.rms_norm(x.float(), x.shape[1:], weight.float(), eps).to(x.dtype)


def softmax_reference(x):
    return functional.softmax(x.float(), -1).to(x.dtype)


def gemm_reference(a, b, alpha=1.0):
    return (alpha * (a.float() @ b.float())).to(a.dtype)
