"""Sums over rows, for the gradients of the weights and biases of norms: in parts, then in all."""

import triton
import triton.language as tl

# Rows that do not fit into registers are read in pieces.
PIECE = 4096
# Sums over rows are split into at most this many partial sums, one per program: about two for each
# of the 132 SMs of an H200. Fewer would leave SMs idle; more would cost more memory traffic.
PARTS = 256


@triton.jit(do_not_specialize=["rows", "blocks", "parts"])
def weight_parts_kernel(
    grad_ptr, x_ptr, means_ptr, scales_ptr, parts_ptr, rows: tl.int64, hidden: tl.int64,
    grad_row: tl.int64, x_row: tl.int64, blocks: tl.int32, parts: tl.int64,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The share of some rows in a block of the weight's gradient, given the scales of the rows.

    With the means of the rows, the bias has a share, too; its parts follow those of the weight.
    """
    part = (tl.program_id(0) // blocks).to(tl.int64)
    col = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = col < hidden
    of_weight, of_bias = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for row in range(part, rows, parts):
        x = tl.load(x_ptr + row * x_row + col, mask=mask, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + row * grad_row + col, mask=mask, other=0.0).to(tl.float32)
        if means_ptr is not None:
            x -= tl.load(means_ptr + row)
            of_bias += grad
        of_weight += grad * x * tl.load(scales_ptr + row)
    tl.store(parts_ptr + part * hidden + col, of_weight, mask=mask)
    if means_ptr is not None:
        tl.store(parts_ptr + (parts + part) * hidden + col, of_bias, mask=mask)


@triton.jit(do_not_specialize=["parts"])
def weight_sum_kernel(
    parts_ptr, out_ptr, bias_ptr, hidden: tl.int64, parts: tl.int64, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The sum of the parts; the programs of a second row of the grid sum up those of the bias."""
    col = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    parts_ptr += tl.program_id(1).to(tl.int64) * parts * hidden
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, parts, ROWS):
        part = start + tl.arange(0, ROWS).to(tl.int64)
        at = parts_ptr + part[:, None] * hidden + col[None, :]
        mask = (part[:, None] < parts) & (col[None, :] < hidden)
        total += tl.load(at, mask=mask, other=0.0)
    if bias_ptr is not None:  # noqa: SIM102  # one is known at compile time, the other is not
        if tl.program_id(1) == 1:
            out_ptr = bias_ptr
    tl.store(out_ptr + col, tl.sum(total, axis=0), mask=col < hidden)
