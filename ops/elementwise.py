"""Two tensors, element by element, of any strides: what add and mul have in common."""

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
    """`x operation y`, broadcast as torch does; what comes out is compact.

    Strides are numbers that kernels are given, 0 where a tensor is broadcast: nothing is copied,
    neither elements nor sizes.
    """
    if x.dtype != y.dtype:
        raise TypeError(f"x is {x.dtype} and y {y.dtype}, and both have to be of one dtype")
    if x.dtype not in _TORCH:
        raise TypeError(f"x and y are {x.dtype}, and one of {', '.join(DTYPES)} is expected")
    # Ranks first: a size that is left open would be compared with one of another dimension.
    if x.dim() != y.dim() or x.shape != y.shape:
        x, y = torch.broadcast_tensors(x, y)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.is_contiguous() and y.is_contiguous():
        _line(x, y, out, 1, 1, operation)
    else:
        _strided(x, y, out, operation)
    return out


def _strided(x: Tensor, y: Tensor, out: Tensor, operation: str) -> None:
    rank = x.dim()
    if rank == 1:
        _line(x, y, out, x.stride(0), y.stride(0), operation)
    elif rank <= 4:
        _tiles(x, y, out, operation)
    else:
        for parts in zip(x.unbind(0), y.unbind(0), out.unbind(0), strict=True):
            _strided(*parts, operation)


def _line(x: Tensor, y: Tensor, out: Tensor, x_step: int, y_step: int, operation: str) -> None:
    n, block = out.numel(), 1024
    line_kernel[(triton.cdiv(n, block),)](
        x, y, out, n, x_step, y_step, OPERATION=operation, BLOCK=block
    )


def _tiles(x: Tensor, y: Tensor, out: Tensor, operation: str) -> None:
    """Tensors of 2 to 4 dimensions, as four."""
    missing = 4 - x.dim()
    outer, inner, rows, cols = (1,) * missing + tuple(x.shape)
    # Whatever the stride of a dimension of one element is: a real one makes no further kernels.
    x_steps = (x.stride(0),) * missing + x.stride()
    y_steps = (y.stride(0),) * missing + y.stride()
    tall, wide = 32, 64
    down, across = triton.cdiv(rows, tall), triton.cdiv(cols, wide)
    tiles_kernel[(outer * inner * down * across,)](
        x, y, out, inner, rows, cols, *x_steps, *y_steps, down, across,
        OPERATION=operation, ROWS=tall, COLS=wide,
    )  # fmt: skip


@triton.jit
def applied(x, y, OPERATION: tl.constexpr):
    # Halves in single precision, where one rounding is all that happens to them.
    if x.dtype.is_floating() and x.dtype.primitive_bitwidth < 32:
        x, y = x.to(tl.float32), y.to(tl.float32)
    return x + y if OPERATION == "add" else x * y


# Numbers that are declared as 64 bits wide have kernels for multiples of 16, and none for 1 or
# for numbers that are small. The steps within a row are the ones for which that matters.
@triton.jit(do_not_specialize_on_alignment=["x_step", "y_step"])
def line_kernel(
    x_ptr, y_ptr, out_ptr, n: tl.int64, x_step, y_step,
    OPERATION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # In 64 bits: the last block may reach beyond 2**31 where n does not.
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at * x_step, mask=mask)
    y = tl.load(y_ptr + at * y_step, mask=mask)
    tl.store(out_ptr + at, applied(x, y, OPERATION), mask=mask)


@triton.jit(
    do_not_specialize=["inner", "rows", "down", "across"],
    do_not_specialize_on_alignment=["x_col", "y_col"],
)
def tiles_kernel(
    x_ptr, y_ptr, out_ptr, inner: tl.int64, rows: tl.int64, cols: tl.int64,
    x_outer: tl.int64, x_inner: tl.int64, x_row: tl.int64, x_col,
    y_outer: tl.int64, y_inner: tl.int64, y_row: tl.int64, y_col,
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
    out_at = (matrix * rows + row) * cols + col
    tl.store(out_ptr + out_at, applied(x, y, OPERATION), mask=mask)
