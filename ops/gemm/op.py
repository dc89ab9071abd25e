"""alpha * a @ b + beta * c of matrices or stacks of matrices, optionally transposed."""

import itertools

import torch
import triton
import triton.language as tl
from torch import Tensor

import opforge
from opforge import native
from opforge.native.device.gemm import FULL_TILES, HALF_TILES, gemm_kernel

from ..rows import (
    FLOATS,
    dense_copy,
    expect_broadcast,
    expect_floats,
    expect_shape,
    on_hopper,
    place,
)
from .hopper import is_mapped, multiply_on_hopper

# Up to so many rows b's bytes decide the time: narrow tiles ask for them on all multiprocessors. An
# AMD GPU has 64 KiB of shared memory, which is too little for so many stages.
FEW = {
    32: {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 128, "num_warps": 4, "num_stages": 7},
    128: {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 128, "num_warps": 4, "num_stages": 4},
}


def lines_of(x: Tensor) -> tuple[Tensor, bool]:
    """x, and whether its columns rather than its rows are dense; copied if neither are."""
    if x.stride(-1) == 1:
        return x, False
    if x.stride(-2) == 1:
        return x, True
    return dense_copy(x), False


def steps_of(x: Tensor, is_columns: bool) -> tuple[int, int]:
    """From one matrix of a stack to the next, and from one line to the next."""
    return x.stride(0) if x.dim() == 3 else 0, x.stride(-1) if is_columns else x.stride(-2)


@triton.jit
def decode_kernel(x_ptr, out_ptr, cols: tl.int64, x_row: tl.int64, x_col: tl.int64,
                  blocks: tl.int32, BLOCK: tl.constexpr):  # fmt: skip
    """fp8 (e4m3fn) as fp16, by their bits: GPUs before sm_89 do not know the type."""
    row, col = place(blocks, BLOCK)
    bits = tl.load(x_ptr + row * x_row + col * x_col, mask=col < cols, other=0).to(tl.uint16)
    # Sign, exponent and mantissa move up; fp16 counts exponents from 8 more.
    half = ((bits & 0x80) << 8 | (bits & 0x7F) << 7).to(tl.float16, bitcast=True) * 256.0
    half = tl.where((bits & 0x7F) == 0x7F, float("nan"), half)
    tl.store(out_ptr + row * cols + col, half.to(tl.float16), mask=col < cols)


def decoded(x: Tensor) -> Tensor:
    out = torch.empty(x.shape, dtype=torch.float16, device=x.device)
    rows, cols = x.shape
    blocks = triton.cdiv(cols, 1024)
    decode_kernel[(rows * blocks,)](
        x.view(torch.uint8), out, cols, x.stride(0), x.stride(1), blocks, BLOCK=1024
    )
    return out


@opforge.op("ops::gemm", mode="custom_op")
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
    if beta is 0. Of fp8 (e4m3fn) matrices the result is bf16, and alpha has the product of their
    scales.
    """
    is_fp8 = a.dtype == b.dtype == torch.float8_e4m3fn
    if not is_fp8:
        expect_floats(a=a, b=b)
    if not {a.dim(), b.dim()} <= ({2} if is_fp8 else {2, 3}):
        expected = "2 dimensions in fp8" if is_fp8 else "2 or 3 dimensions"
        raise ValueError(f"a and b must have {expected}, found {a.dim()} and {b.dim()}")
    a = a.transpose(-1, -2) if trans_a else a
    b = b.transpose(-1, -2) if trans_b else b
    (m, k), n = a.shape[-2:], b.shape[-1]
    stacks = [x.shape[0] for x in (a, b) if x.dim() == 3]
    expect_shape("b", b, (*stacks[: b.dim() - 2], k, n))
    dtype = torch.bfloat16 if is_fp8 else a.dtype
    out = torch.empty((*stacks[:1], m, n), dtype=dtype, device=a.device)
    if c is None:
        c, beta, is_whole = out, 0.0, True
    else:
        expect_floats(c=c)
        expect_broadcast("c", c, out.shape)
        is_whole = c.dtype == out.dtype and c.shape == out.shape
        c = c.expand(out.shape)
        c = c if c.stride(-1) == 1 else dense_copy(c)
    if a.dtype != b.dtype:
        raise TypeError(f"a and b must have the same dtype, found {a.dtype} and {b.dtype}")
    if out.numel() == 0:
        return out
    is_half = a.dtype in {torch.float16, torch.bfloat16}
    few = next((tiles for most, tiles in FEW.items() if m <= most), None) if is_half else None
    if few is not None and torch.version.hip:
        few = {**few, "num_stages": 2}
    is_fast = is_whole and a.dtype != torch.float32 and few is None and on_hopper(a)
    (a, a_columns), (b, b_columns) = lines_of(given_a := a), lines_of(given_b := b)
    # Tensor cores take fp8 only along k.
    is_fast = is_fast and a is given_a and b is given_b
    is_fast = is_fast and (not is_fp8 or (b_columns and not a_columns))
    if is_fast and is_mapped(k, a.mT if a_columns else a, b.mT if b_columns else b, c, out):
        multiply_on_hopper(a, b, c, out, alpha, beta, a_columns, b_columns)
        return out
    if is_fp8:
        a, b, a_columns, b_columns = decoded(a), decoded(b), False, False
    a_stack, a_line = steps_of(a, a_columns)
    b_stack, b_line = steps_of(b, b_columns)
    c_stack = c.stride(0) if c.dim() == 3 else 0
    tiles = FULL_TILES if a.dtype == torch.float32 else few or HALF_TILES
    down, across = triton.cdiv(m, tiles["BLOCK_M"]), triton.cdiv(n, tiles["BLOCK_N"])
    count = stacks[0] if stacks else 1
    gemm_kernel[(count * down * across,)](
        a, b, c, out, alpha, beta, m, n, k, a_stack, a_line, b_stack, b_line, c_stack, c.stride(-2),
        down, across, A_COLUMNS=a_columns, B_COLUMNS=b_columns, **tiles,
    )  # fmt: skip
    return out


def declare(stack: str, trans_a: bool, trans_b: bool, c: str, **dtypes: tuple[str, ...]) -> None:
    native.declare(
        gemm,
        a=native.tensor(f"{stack}{'k m' if trans_a else 'm k'}", dtype="T", layout="strided"),
        b=native.tensor(f"{stack}{'n k' if trans_b else 'k n'}", dtype="T", layout="strided"),
        c=native.optional(native.tensor(f"{stack}m n", dtype=c)),
        alpha=native.scalar("fp32"),
        beta=native.scalar("fp32"),
        trans_a=native.choice(trans_a),
        trans_b=native.choice(trans_b),
        **dtypes,
    )


for stack, trans_a, trans_b in itertools.product(("", "stack "), (False, True), (False, True)):
    declare(stack, trans_a, trans_b, "T", T=FLOATS)
for trans_b in (False, True):
    declare("", False, trans_b, "bf16", T=("fp8e4nv",))


def gemm_reference(a, b, c=None, alpha=1.0, beta=1.0, trans_a=False, trans_b=False):
    a, b = a.mT if trans_a else a, b.mT if trans_b else b
    if a.dtype == torch.float8_e4m3fn:
        a, b = a.bfloat16(), b.bfloat16()
    product = alpha * (a @ b)
    return product if c is None or beta == 0 else product + beta * c


def gemm_inputs():
    return (torch.randn(33, 40), torch.randn(40, 70)), {}
