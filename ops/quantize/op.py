"""Rows, or blocks of 128 of their elements, as int8 or fp8 (e4m3) with one fp32 scale each."""

import torch
import triton
import triton.language as tl
from torch import Tensor

import opforge
from opforge import native

from ..rows import FLOATS, LONGEST, dense_rows, expect_floats, expect_rows, place, row_block

# Elements of a row that a program reads at a time, and the elements that share a scale.
PIECE = 4096
WARPS = 8
GROUP = 128
# The largest values of each dtype that are used; int8's -128 is not.
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
# The inverse of less would be infinite.
TINY = 2.0**-100


@triton.jit
def magnitude_bits(x):
    """The bits of |x|, whose order is that of the numbers, with NaN above infinity."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def scale_and_inverse(bits, LARGEST: tl.constexpr):
    """The scale for numbers up to the one with these bits, and what to multiply them by."""
    top = bits.to(tl.float32, bitcast=True)
    # 2**-100; NaN is neither above nor below.
    scale = tl.where(top <= 7.888609052210118e-31, 0.0, tl.div_rn(top, LARGEST))
    safe = tl.where(top > 7.888609052210118e-31, top, 1.0)
    inverse = tl.div_rn(tl.full(safe.shape, LARGEST, tl.float32), safe)
    return scale, tl.where(top > 7.888609052210118e-31, inverse, 0.0)


@triton.jit
def e4m3_bits(x):
    """x of at most 448, rounded to the nearest number of e4m3, ties to even, for any GPU."""
    bits = magnitude_bits(x)
    # Numbers have 3 bits after the first, and below 2**-6 steps of 2**-9. A number that is 2**20
    # times as large as the power of two at or below x has this step as its last bit.
    power = tl.maximum(bits & 0x7F800000, 121 << 23)
    large = (power + (20 << 23)).to(tl.float32, bitcast=True)
    steps = (bits.to(tl.float32, bitcast=True) + large).to(tl.int32, bitcast=True)
    steps -= power + (20 << 23)
    code = (power >> 20) - (120 << 3) + steps - 8
    return (code | ((x.to(tl.int32, bitcast=True) >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def quantized(x, inverse, LARGEST: tl.constexpr):
    """The bytes of x * inverse, in int8 if LARGEST is 127, otherwise in e4m3."""
    x = tl.clamp(x * inverse, -LARGEST, LARGEST)
    if LARGEST == 127.0:
        # Adding 1.5 * 2**23 rounds as torch.round does; the last byte is the result.
        return (x + 12582912.0).to(tl.int32, bitcast=True).to(tl.uint8)
    if tl.target_info.cuda_capability_geq(8, 9):
        return x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return e4m3_bits(x)


@triton.jit
def quantize_rows_kernel(
    x_ptr, out_ptr, scales_ptr, cols: tl.int64, x_row: tl.int64, LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    mask = col < cols
    x = tl.load(x_ptr + row * x_row + col, mask=mask, other=0.0).to(tl.float32)
    scale, inverse = scale_and_inverse(tl.max(magnitude_bits(x), axis=0), LARGEST)
    tl.store(scales_ptr + row, scale)
    tl.store(out_ptr + row * cols + col, quantized(x, inverse, LARGEST), mask=mask)


@triton.jit
def quantize_rows_pieces_kernel(
    x_ptr, out_ptr, scales_ptr, cols: tl.int64, x_row: tl.int64, LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    bits = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK).to(tl.int64)
        x = tl.load(x_ptr + row * x_row + col, mask=col < cols, other=0.0).to(tl.float32)
        bits = tl.maximum(bits, magnitude_bits(x))
    scale, inverse = scale_and_inverse(tl.max(bits, axis=0), LARGEST)
    tl.store(scales_ptr + row, scale)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK).to(tl.int64)
        x = tl.load(x_ptr + row * x_row + col, mask=col < cols, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * cols + col, quantized(x, inverse, LARGEST), mask=col < cols)


@triton.jit(do_not_specialize=["blocks", "groups"])
def quantize_blocks_kernel(
    x_ptr, out_ptr, scales_ptr, cols: tl.int64, groups: tl.int64, x_row: tl.int64,
    blocks: tl.int32, LARGEST: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row, group = place(blocks, GROUPS)
    col = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    mask = col < cols
    x = tl.load(x_ptr + row * x_row + col, mask=mask, other=0.0).to(tl.float32)
    scale, inverse = scale_and_inverse(tl.max(magnitude_bits(x), axis=1), LARGEST)
    tl.store(scales_ptr + row * groups + group, scale, mask=group < groups)
    value = quantized(x, inverse[:, None], LARGEST)
    tl.store(out_ptr + row * cols + col, value, mask=mask)


def expect_dtype(dtype: torch.dtype) -> None:
    if dtype not in LARGEST:
        raise TypeError(f"dtype must be torch.int8 or torch.float8_e4m3fn, found {dtype}")


@opforge.op("ops::quantize_rows")
def quantize_rows(x: Tensor, dtype: torch.dtype = torch.int8) -> tuple[Tensor, Tensor]:
    """x as values of dtype, and a scale per row: x is about values * scale.

    A row's scale is its largest magnitude over 127 or 448; values are rounded to nearest, ties to
    even. A row without anything above 2**-100 has scale and values of 0.
    """
    expect_floats(x=x)
    expect_rows(x)
    expect_dtype(dtype)
    values = torch.empty(x.shape, dtype=dtype, device=x.device)
    if x.numel() == 0:
        return values, torch.zeros((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    scales = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    x = dense_rows(x)
    rows, cols = x.shape
    given = (x, values.view(torch.uint8), scales, cols, x.stride(0), LARGEST[dtype])
    if cols <= LONGEST:
        block, warps = row_block(cols)
        quantize_rows_kernel[(rows,)](*given, BLOCK=block, num_warps=warps)
    else:
        quantize_rows_pieces_kernel[(rows,)](*given, BLOCK=PIECE, num_warps=WARPS)
    return values, scales


@opforge.op("ops::quantize_blocks")
def quantize_blocks(x: Tensor, dtype: torch.dtype = torch.int8) -> tuple[Tensor, Tensor]:
    """As quantize_rows, with a scale for each 128 elements of a row; the last may have fewer."""
    expect_floats(x=x)
    expect_rows(x)
    expect_dtype(dtype)
    groups = triton.cdiv(x.shape[-1], GROUP)
    values = torch.empty(x.shape, dtype=dtype, device=x.device)
    scales = torch.empty((*x.shape[:-1], groups), dtype=torch.float32, device=x.device)
    if x.numel() > 0:
        x = dense_rows(x)
        rows, cols = x.shape
        blocks = triton.cdiv(groups, PIECE // GROUP)
        quantize_blocks_kernel[(rows * blocks,)](
            x, values.view(torch.uint8), scales, cols, groups, x.stride(0), blocks,
            LARGEST=LARGEST[dtype], GROUPS=PIECE // GROUP, GROUP=GROUP, num_warps=WARPS,
        )  # fmt: skip
    return values, scales


dtype = native.choice(torch.int8, torch.float8_e4m3fn)
for op in (quantize_rows, quantize_blocks):
    native.declare(op, x=native.tensor("*s cols", dtype="T", ranks=(1, 3)), dtype=dtype, T=FLOATS)
    native.declare(
        op, x=native.tensor("rows cols", dtype="T", layout="strided"), dtype=dtype, T=FLOATS
    )


def quantize_rows_reference(x, dtype=torch.int8):
    x, largest = x.float(), LARGEST[dtype]
    if x.numel() == 0:
        return x.to(dtype), x.new_zeros((*x.shape[:-1], 1))
    top = x.abs().amax(-1, keepdim=True)
    # torch divides a number, and on a GPU by a number, through the inverse, which rounds twice.
    scales = torch.where(top <= TINY, 0.0, top / torch.full_like(top, largest))
    inverse = torch.full_like(top, largest) / top
    values = (x * torch.where(top > TINY, inverse, 0.0)).clamp(-largest, largest)
    return (values.round() if dtype == torch.int8 else values).to(dtype), scales


def quantize_blocks_reference(x, dtype=torch.int8):
    cols = x.shape[-1]
    groups = triton.cdiv(cols, GROUP)
    padded = torch.nn.functional.pad(x, (0, groups * GROUP - cols))
    parts = padded.reshape(*x.shape[:-1], groups, GROUP)
    values, scales = quantize_rows_reference(parts, dtype)
    return values.reshape(padded.shape)[..., :cols].contiguous(), scales.squeeze(-1)


def quantize_rows_inputs():
    return (torch.randn(3, 128),), {}


def quantize_blocks_inputs():
    return (torch.randn(3, 300),), {}
