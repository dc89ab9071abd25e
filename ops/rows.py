"""Tensors as matrices whose rows are their last dimension, for kernels that read dense rows.

All kernels take sizes and strides as int64, which are specialized for multiples of 16 but neither
for 1 nor for 32 bits. Block counts are int32, because no grid is larger.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

FLOATS = ("fp16", "bf16", "fp32")
# Rows up to this length are held in registers; longer ones are read in pieces.
LONGEST = 8192


def expect_floats(**tensors: Tensor) -> None:
    """Kernels compute in fp32, where wider types would silently lose precision."""
    for name, tensor in tensors.items():
        if tensor.dtype not in {torch.float16, torch.bfloat16, torch.float32}:
            raise TypeError(f"{name} must be fp16, bf16 or fp32, found {tensor.dtype}")


def expect_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Kernels trust the sizes and would read beyond a smaller tensor."""
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} must have shape {tuple(shape)}, found {tuple(tensor.shape)}")


def expect_broadcast(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    pairs = zip(reversed(tensor.shape), reversed(shape), strict=False)
    if tensor.dim() > len(shape) or not all(size in (to, 1) for size, to in pairs):
        found = tuple(tensor.shape)
        raise ValueError(f"{name} must broadcast to {tuple(shape)}, found shape {found}")


def on_hopper(x: Tensor) -> bool:
    """Whether x is on a GPU with the instructions of sm_90; later ones have others."""
    # AMD's gfx942 has capability 9.4.
    is_nvidia = x.is_cuda and torch.version.hip is None
    return is_nvidia and torch.cuda.get_device_capability(x.device)[0] == 9


def expect_rows(x: Tensor) -> None:
    if x.dim() == 0:
        raise ValueError("x must have rows, found a tensor without dimensions")


def half_of(x: Tensor) -> int:
    """Half of the last dimension, for operators whose rows are two halves."""
    expect_rows(x)
    if x.shape[-1] % 2 != 0:
        raise ValueError(f"the last dimension of x must be even, found {x.shape[-1]}")
    return x.shape[-1] // 2


def dense_rows(x: Tensor) -> Tensor:
    """x as a matrix with dense rows, any stride apart; copied if its rows are not dense."""
    # No reshape of a matrix: its questions about strides would each add a path to the library.
    x = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    return x if x.stride(1) == 1 else dense_copy(x)


def dense_copy(x: Tensor) -> Tensor:
    """A contiguous copy of a matrix or a stack of them, by a kernel, as in a native library."""
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
    """is_contiguous with fewer guards; false for some matrices of one row or column."""
    if x.dim() == 2:
        return x.stride(1) == 1 and x.stride(0) == x.shape[1]
    return x.is_contiguous()


def spans(*tensors: Tensor) -> tuple[int, int, list[Tensor], list[int]]:
    """Tensors of one shape as rows: their number, their length, the tensors and row strides.

    If all tensors are contiguous, they are one long row.
    """
    if all(is_compact(tensor) for tensor in tensors):
        return 1, tensors[0].numel(), list(tensors), [0] * len(tensors)
    found = [dense_rows(tensor) for tensor in tensors]
    rows, cols = found[0].shape
    return rows, cols, found, [tensor.stride(0) for tensor in found]


@triton.jit
def place(blocks, BLOCK: tl.constexpr):
    """The row and the columns of this program, with `blocks` programs per row."""
    # In 64 bits: the last block may reach beyond 2**31 even if the tensor does not.
    row = (tl.program_id(0) // blocks).to(tl.int64)
    col = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return row, col


def row_block(cols: int) -> tuple[int, int]:
    """The block for a row of at most LONGEST, and its warps: 8 to 16 elements per thread.

    All short rows share a block size, so that there are fewer kernels.
    """
    block = triton.next_power_of_2(max(cols, 1024))
    return block, max(block // 512, 4)
