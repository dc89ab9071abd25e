"""alpha * a @ b + beta * c of matrices or stacks of matrices, optionally transposed."""

import itertools

import torch
import triton
from torch import Tensor

import opforge
from opforge import native
from opforge.native.device.gemm import FULL_TILES, HALF_TILES, gemm_kernel

from ..rows import FLOATS, dense_copy, expect_floats, expect_shape


def lines_of(x: Tensor) -> tuple[Tensor, bool, int, int]:
    """x, whether its columns rather than its rows are dense, and the strides of lines and stack.

    A matrix with neither dense rows nor dense columns is copied.
    """
    if x.stride(-1) != 1 and x.stride(-2) != 1:
        x = dense_copy(x)
    stack = x.stride(0) if x.dim() == 3 else 0
    if x.stride(-1) == 1:
        return x, False, x.stride(-2), stack
    return x, True, x.stride(-1), stack


@opforge.op("ops::gemm")
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    trans_a: bool = False,
    trans_b: bool = False,
) -> Tensor:
    """alpha * a @ b + beta * c, summed in fp32; trans_a and trans_b transpose a and b first.

    A single matrix is multiplied with each matrix of a stack. c is broadcast, and it is not read
    if beta is 0.
    """
    expect_floats(a=a, b=b)
    if not {a.dim(), b.dim()} <= {2, 3}:
        raise ValueError(f"a and b must have 2 or 3 dimensions, found {a.dim()} and {b.dim()}")
    a = a.transpose(-1, -2) if trans_a else a
    b = b.transpose(-1, -2) if trans_b else b
    (m, k), n = a.shape[-2:], b.shape[-1]
    stacks = [x.shape[0] for x in (a, b) if x.dim() == 3]
    expect_shape("b", b, (*stacks[: b.dim() - 2], k, n))
    out = torch.empty((*stacks[:1], m, n), dtype=a.dtype, device=a.device)
    if c is None:
        c, beta = out, 0.0
    else:
        expect_floats(c=c)
        c = c.expand(out.shape)
        c = c if c.stride(-1) == 1 else dense_copy(c)
    if a.dtype != b.dtype:
        raise TypeError(f"a and b must have the same dtype, found {a.dtype} and {b.dtype}")
    if out.numel() == 0:
        return out
    a, a_columns, a_line, a_stack = lines_of(a)
    b, b_columns, b_line, b_stack = lines_of(b)
    c_stack = c.stride(0) if c.dim() == 3 else 0
    tiles = FULL_TILES if a.dtype == torch.float32 else HALF_TILES
    down, across = triton.cdiv(m, tiles["BLOCK_M"]), triton.cdiv(n, tiles["BLOCK_N"])
    count = stacks[0] if stacks else 1
    gemm_kernel[(count * down * across,)](
        a, b, c, out, alpha, beta, m, n, k, a_stack, a_line, b_stack, b_line, c_stack, c.stride(-2),
        down, across, A_COLUMNS=a_columns, B_COLUMNS=b_columns, **tiles,
    )  # fmt: skip
    return out


for stack, trans_a, trans_b in itertools.product(("", "stack "), (False, True), (False, True)):
    native.declare(
        gemm,
        a=native.tensor(f"{stack}{'k m' if trans_a else 'm k'}", dtype="T", layout="strided"),
        b=native.tensor(f"{stack}{'n k' if trans_b else 'k n'}", dtype="T", layout="strided"),
        c=native.optional(native.tensor(f"{stack}m n", dtype="T")),
        alpha=native.scalar("fp32"),
        beta=native.scalar("fp32"),
        trans_a=native.choice(trans_a),
        trans_b=native.choice(trans_b),
        T=FLOATS,
    )


def gemm_reference(a, b, c=None, alpha=1.0, beta=1.0, trans_a=False, trans_b=False):
    a, b = a.mT if trans_a else a, b.mT if trans_b else b
    product = alpha * (a @ b)
    return product if c is None or beta == 0 else product + beta * c


def gemm_inputs():
    return (torch.randn(33, 40), torch.randn(40, 70)), {}
