"""Rows of a table by index, and the gradient of the table."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

import opforge
from opforge import native

from ..rows import FLOATS, dense_rows, expect_floats, expect_shape, place

# Elements of a row per program, in both directions: 16 or 32 per thread.
BLOCK = 4096
WARPS = 8
# Entries, or positions, per program of the kernels that sort positions by entry.
LIST = 1024


@triton.jit(do_not_specialize=["blocks", "entries"])
def embedding_kernel(
    table_ptr, indices_ptr, out_ptr, entries: tl.int64, hidden: tl.int64, table_row: tl.int64,
    blocks: tl.int32, BLOCK: tl.constexpr,
):  # fmt: skip
    row, col = place(blocks, BLOCK)
    index = tl.load(indices_ptr + row).to(tl.int64)
    mask = col < hidden
    known = (index >= 0) & (index < entries)
    value = tl.load(table_ptr + index * table_row + col, mask=mask & known, other=0.0)
    tl.store(out_ptr + row * hidden + col, value, mask=mask)


@triton.jit(do_not_specialize=["count", "entries"])
def count_kernel(indices_ptr, counts_ptr, count: tl.int64, entries: tl.int64, BLOCK: tl.constexpr):
    """How often each entry is used."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(indices_ptr + at, mask=at < count, other=-1).to(tl.int64)
    known = (index >= 0) & (index < entries)
    tl.atomic_add(counts_ptr + index, tl.full((BLOCK,), 1, tl.int64), mask=known, sem="relaxed")


@triton.jit(do_not_specialize=["entries"])
def starts_kernel(counts_ptr, starts_ptr, used_ptr, entries: tl.int64, BLOCK: tl.constexpr):
    """A place in a list for the positions of each entry; blocks of entries come in any order."""
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    counts = tl.load(counts_ptr + entry, mask=entry < entries, other=0)
    base = tl.atomic_add(used_ptr, tl.sum(counts, axis=0), sem="relaxed")
    tl.store(starts_ptr + entry, base + tl.cumsum(counts, axis=0) - counts, mask=entry < entries)


@triton.jit(do_not_specialize=["count", "entries"])
def list_kernel(
    indices_ptr, ends_ptr, listed_ptr, count: tl.int64, entries: tl.int64, BLOCK: tl.constexpr
):
    """Positions, listed by entry in any order; afterwards a start is the end of its list."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(indices_ptr + at, mask=at < count, other=-1).to(tl.int64)
    known = (index >= 0) & (index < entries)
    one = tl.full((BLOCK,), 1, tl.int64)
    place = tl.atomic_add(ends_ptr + index, one, mask=known, sem="relaxed")
    tl.store(listed_ptr + place, at, mask=known)


@triton.jit(do_not_specialize=["entries"])
def order_kernel(
    indices_ptr, counts_ptr, ends_ptr, listed_ptr, ordered_ptr, entries: tl.int64,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A position goes behind the lower ones of its entry, so that sums have one order."""
    at = tl.program_id(0).to(tl.int64)
    index = tl.load(indices_ptr + at).to(tl.int64)
    known = (index >= 0) & (index < entries)
    length = tl.load(counts_ptr + index, mask=known, other=0)
    start = tl.load(ends_ptr + index, mask=known, other=0) - length
    lower = tl.zeros((BLOCK,), tl.int64)
    for first in range(0, length, BLOCK):
        part = first + tl.arange(0, BLOCK).to(tl.int64)
        other = tl.load(listed_ptr + start + part, mask=part < length, other=at)
        lower += tl.where(other < at, 1, 0)
    tl.store(ordered_ptr + start + tl.sum(lower, axis=0), at, mask=known)


@triton.jit(do_not_specialize=["blocks"])
def embedding_backward_kernel(
    grad_ptr, counts_ptr, ends_ptr, ordered_ptr, out_ptr, hidden: tl.int64, grad_row: tl.int64,
    blocks: tl.int32, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of an entry's gradient: the sum over its positions, zeros where it has none."""
    entry, col = place(blocks, BLOCK)
    mask = col < hidden
    length = tl.load(counts_ptr + entry)
    start = tl.load(ends_ptr + entry) - length
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(length):
        at = tl.load(ordered_ptr + start + part)
        total += tl.load(grad_ptr + at * grad_row + col, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + entry * hidden + col, total, mask=mask)


def expect_indices(indices: Tensor) -> None:
    if indices.dtype not in {torch.int32, torch.int64}:
        raise TypeError(f"indices must be i32 or i64, found {indices.dtype}")


@opforge.op("ops::embedding_backward")
def embedding_backward(grad: Tensor, indices: Tensor, entries: int) -> Tensor:
    """The gradient of a table of so many entries, given that of embedding(table, indices).

    Sums are made in fp32, in the order of the positions: the same result each time.
    """
    expect_floats(grad=grad)
    expect_indices(indices)
    expect_shape("grad", grad, (*indices.shape, grad.shape[-1]))
    hidden, count = grad.shape[-1], indices.numel()
    if grad.numel() == 0:
        return torch.zeros((entries, hidden), dtype=grad.dtype, device=grad.device)
    out = torch.empty((entries, hidden), dtype=grad.dtype, device=grad.device)
    if entries > 0:
        grad, indices = dense_rows(grad), indices.contiguous()
        # The last count is that of all positions in lists.
        counts = torch.zeros((entries + 1,), dtype=torch.int64, device=grad.device)
        ends = torch.empty((entries,), dtype=torch.int64, device=grad.device)
        listed = torch.empty((count,), dtype=torch.int64, device=grad.device)
        ordered = torch.empty((count,), dtype=torch.int64, device=grad.device)
        several, of_entries = (triton.cdiv(count, LIST),), (triton.cdiv(entries, LIST),)
        count_kernel[several](indices, counts, count, entries, BLOCK=LIST)
        starts_kernel[of_entries](counts, ends, counts[entries:], entries, BLOCK=LIST)
        list_kernel[several](indices, ends, listed, count, entries, BLOCK=LIST)
        order_kernel[(count,)](indices, counts, ends, listed, ordered, entries, BLOCK=128)
        blocks = triton.cdiv(hidden, BLOCK)
        embedding_backward_kernel[(entries * blocks,)](
            grad, counts, ends, ordered, out, hidden, grad.stride(0), blocks,
            BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip
    return out


def save(ctx, inputs, output):  # noqa: ARG001  # torch's parameters
    table, indices = inputs
    ctx.entries = table.shape[0]
    ctx.save_for_backward(indices)


def backward(ctx, grad):
    (indices,) = ctx.saved_tensors
    return embedding_backward(grad, indices, ctx.entries), None


@opforge.op("ops::embedding", backward=backward, setup_context=save)
def embedding(table: Tensor, indices: Tensor) -> Tensor:
    """The rows of table that indices name; an index outside of it gives zeros."""
    expect_floats(table=table)
    expect_indices(indices)
    if table.dim() != 2:
        raise ValueError(f"table must be a matrix, found {table.dim()} dimensions")
    entries, hidden = table.shape
    out = torch.empty((*indices.shape, hidden), dtype=table.dtype, device=table.device)
    if out.numel() > 0:
        table, indices = dense_rows(table), indices.contiguous()
        blocks = triton.cdiv(hidden, BLOCK)
        embedding_kernel[(indices.numel() * blocks,)](
            table, indices, out, entries, hidden, table.stride(0), blocks,
            BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip
    return out


indices = native.tensor("*s", dtype="I", ranks=(1, 2))
table = native.tensor("entries hidden", dtype="T", layout="strided")
native.declare(embedding, table=table, indices=indices, T=FLOATS, I=("i32", "i64"))
native.declare(
    embedding_backward, grad=native.tensor("*s hidden", dtype="T"), indices=indices,
    entries=native.scalar("i64"), dims={"entries": (0, None)}, T=FLOATS, I=("i32", "i64"),
)  # fmt: skip


def embedding_reference(table, indices):
    return functional.embedding(indices, table)


def embedding_backward_reference(grad, indices, entries):
    return torch.ops.aten.embedding_dense_backward(grad, indices, entries, -1, False)


def embedding_inputs():
    return (torch.randn(5, 128), torch.randint(5, (4,))), {}


def embedding_backward_inputs():
    return (torch.randn(3, 128), torch.randint(5, (3,)), 5), {}
