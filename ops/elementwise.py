"""Elementwise operations on two tensors of any strides, shared by add and mul."""

import torch
import triton
import triton.language as tl
from torch import Tensor

DTYPES = (
    "fp16", "bf16", "fp32", "fp64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64",
)  # fmt: skip
RANKS = (0, 1, 2, 3, 4)
_TORCH = {
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64,
}  # fmt: skip


def combine(x: Tensor, y: Tensor, operation: str) -> Tensor:
    """`x operation y`, broadcast as in torch; the result is contiguous.

    Kernels take the strides as arguments, 0 along a broadcast dimension, so nothing is copied. The
    result's are among them, because a native library writes to outputs of any strides.
    """
    if x.dtype != y.dtype:
        raise TypeError(f"x and y must have the same dtype, found {x.dtype} and {y.dtype}")
    if x.dtype not in _TORCH:
        raise TypeError(f"x and y must be one of {', '.join(DTYPES)}, found {x.dtype}")
    # Ranks first: otherwise symbolic sizes of different dimensions would be compared.
    if x.dim() != y.dim() or x.shape != y.shape:
        x, y = torch.broadcast_tensors(x, y)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.is_contiguous() and y.is_contiguous() and out.is_contiguous():
        _line(x, y, out, (1, 1, 1), operation)
    else:
        _strided(x, y, out, operation)
    return out


def _strided(x: Tensor, y: Tensor, out: Tensor, operation: str) -> None:
    rank = x.dim()
    if rank == 1:
        _line(x, y, out, (x.stride(0), y.stride(0), out.stride(0)), operation)
    elif rank <= 4:
        _tiles(x, y, out, operation)
    else:
        for parts in zip(x.unbind(0), y.unbind(0), out.unbind(0), strict=True):
            _strided(*parts, operation)


def _line(x: Tensor, y: Tensor, out: Tensor, strides: tuple[int, int, int], operation: str) -> None:
    n, block = out.numel(), 1024
    line_kernel[(triton.cdiv(n, block),)](x, y, out, n, *strides, OPERATION=operation, BLOCK=block)


def _tiles(x: Tensor, y: Tensor, out: Tensor, operation: str) -> None:
    """Tensors of 2 to 4 dimensions, treated as 4."""
    missing = 4 - x.dim()
    outer, inner, rows, cols = (1,) * missing + tuple(x.shape)
    # The stride of a dimension of size 1 does not matter; reusing one avoids further kernels.
    strides = [s for t in (x, y, out) for s in (t.stride(0),) * missing + t.stride()]
    tall, wide = 32, 64
    down, across = triton.cdiv(rows, tall), triton.cdiv(cols, wide)
    tiles_kernel[(outer * inner * down * across,)](
        x, y, out, inner, rows, cols, *strides, down, across,
        OPERATION=operation, ROWS=tall, COLS=wide,
    )  # fmt: skip


@triton.jit
def applied(x, y, OPERATION: tl.constexpr):
    # Half precision is computed in fp32, so that it is rounded only once.
    if x.dtype.is_floating() and x.dtype.primitive_bitwidth < 32:
        x, y = x.to(tl.float32), y.to(tl.float32)
    return x + y if OPERATION == "add" else x * y


# An int64 argument is specialized for multiples of 16, but neither for 1 nor for 32 bits. Both
# matter for the strides within a row, which is why these have no annotation.
@triton.jit(do_not_specialize_on_alignment=["x_stride", "y_stride", "out_stride"])
def line_kernel(
    x_ptr, y_ptr, out_ptr, n: tl.int64, x_stride, y_stride, out_stride,
    OPERATION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # In 64 bits: the last block may reach beyond 2**31 where n does not.
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at * x_stride, mask=mask)
    y = tl.load(y_ptr + at * y_stride, mask=mask)
    tl.store(out_ptr + at * out_stride, applied(x, y, OPERATION), mask=mask)


@triton.jit(
    do_not_specialize=["inner", "rows", "down", "across"],
    do_not_specialize_on_alignment=["x_col", "y_col", "out_col"],
)
def tiles_kernel(
    x_ptr, y_ptr, out_ptr, inner: tl.int64, rows: tl.int64, cols: tl.int64,
    x_outer: tl.int64, x_inner: tl.int64, x_row: tl.int64, x_col,
    y_outer: tl.int64, y_inner: tl.int64, y_row: tl.int64, y_col,
    out_outer: tl.int64, out_inner: tl.int64, out_row: tl.int64, out_col,
    down: tl.int64, across: tl.int64,
    OPERATION: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0).to(tl.int64)
    col = tile % across * COLS + tl.arange(0, COLS)[None, :]
    tile = tile // across
    row = tile % down * ROWS + tl.arange(0, ROWS)[:, None]
    matrix = tile // down
    i, j = matrix // inner, matrix % inner
    mask = (row < rows) & (col < cols)
    x_at = i * x_outer + j * x_inner + row * x_row + col * x_col
    y_at = i * y_outer + j * y_inner + row * y_row + col * y_col
    x = tl.load(x_ptr + x_at, mask=mask)
    y = tl.load(y_ptr + y_at, mask=mask)
    out_at = i * out_outer + j * out_inner + row * out_row + col * out_col
    tl.store(out_ptr + out_at, applied(x, y, OPERATION), mask=mask)
