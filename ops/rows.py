"""Tensors as matrices whose rows are their last dimension, for kernels that read dense rows.

Sizes and strides are declared as 64 bits wide in all kernels: there are kernels for multiples of
16 then, and none for 1 or for numbers that are small. Counts of blocks are no larger than grids.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

FLOATS = ("fp16", "bf16", "fp32")
# Longer rows are read in pieces; up to here a row is held in registers.
LONGEST = 8192


def expect_floats(**tensors: Tensor) -> None:
    """Kernels compute in fp32: what is wider would lose digits without a word."""
    for name, tensor in tensors.items():
        if tensor.dtype not in {torch.float16, torch.bfloat16, torch.float32}:
            raise TypeError(f"{name} is {tensor.dtype}, and fp16, bf16 or fp32 is expected")


def expect_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Kernels trust sizes, and would read beyond a tensor that is smaller."""
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, and {tuple(shape)} is expected")


def expect_rows(x: Tensor) -> None:
    if x.dim() == 0:
        raise ValueError("x is a single number, and rows are expected")


def dense_rows(x: Tensor) -> Tensor:
    """A matrix of the rows of x, any number of elements apart; copied where they are not dense."""
    # A matrix is not asked what else a view could be: each question is a path of the library.
    x = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    return x if x.stride(1) == 1 else dense_copy(x)


def dense_copy(x: Tensor) -> Tensor:
    """A compact copy of a matrix or a stack of them, by a kernel, so that libraries can make it."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, cols = x.shape[-2:]
    stack, x_stack = (x.shape[0], x.stride(0)) if x.dim() == 3 else (1, 0)
    blocks = triton.cdiv(cols, 1024)
    copy_kernel[(stack * rows * blocks,)](
        x, out, rows, cols, x_stack, x.stride(-2), x.stride(-1), blocks, BLOCK=1024
    )
    return out


@triton.jit(do_not_specialize=["rows", "x_stack", "x_row", "x_col", "blocks"])
def copy_kernel(
    x_ptr, out_ptr, rows: tl.int64, cols: tl.int64, x_stack: tl.int64, x_row: tl.int64,
    x_col: tl.int64, blocks: tl.int32, BLOCK: tl.constexpr,
):  # fmt: skip
    row, col = place(blocks, BLOCK)
    mask = col < cols
    x_at = row // rows * x_stack + row % rows * x_row + col * x_col
    tl.store(out_ptr + row * cols + col, tl.load(x_ptr + x_at, mask=mask), mask=mask)


def is_compact(x: Tensor) -> bool:
    """As is_contiguous, but for matrices of one row or column, in fewer questions."""
    if x.dim() == 2:
        return x.stride(1) == 1 and x.stride(0) == x.shape[1]
    return x.is_contiguous()


def spans(*tensors: Tensor) -> tuple[int, int, list[Tensor], list[int]]:
    """Tensors of one shape as rows: how many, how long, the tensors, how far apart their rows lie.

    Tensors that are all compact are one long row.
    """
    if all(is_compact(tensor) for tensor in tensors):
        return 1, tensors[0].numel(), list(tensors), [0] * len(tensors)
    found = [dense_rows(tensor) for tensor in tensors]
    rows, cols = found[0].shape
    return rows, cols, found, [tensor.stride(0) for tensor in found]


@triton.jit
def place(blocks, BLOCK: tl.constexpr):
    """The row and the columns of a program, of which each row has so many."""
    # In 64 bits: the last block may reach beyond 2**31 where the tensor does not.
    row = (tl.program_id(0) // blocks).to(tl.int64)
    col = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return row, col


def row_block(cols: int) -> tuple[int, int]:
    """A block that holds a row of at most LONGEST, and its warps: 8 to 16 elements a thread.

    All short rows share a block, so that there are fewer kernels.
    """
    block = triton.next_power_of_2(max(cols, 1024))
    return block, max(block // 512, 4)
