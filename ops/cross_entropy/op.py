"""The cross entropy of rows of logits and their targets, and its gradient, also in place."""

from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

import opforge
from opforge import native

from ..rows import FLOATS, dense_rows, expect_floats, expect_shape

# Rows of any length are read in pieces; a gradient reads them a second time, from the L2 cache.
PIECE = 4096
WARPS = 8
# Targets per step of the program that counts them.
TARGETS = 8192


@triton.jit(do_not_specialize=["rows", "ignore_index"])
def target_count_kernel(
    target_ptr, count_ptr, rows: tl.int64, ignore_index: tl.int64, BLOCK: tl.constexpr
):
    """How many rows are not ignored, and at least 1."""
    total = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, rows, BLOCK):
        row = start + tl.arange(0, BLOCK).to(tl.int64)
        target = tl.load(target_ptr + row, mask=row < rows, other=ignore_index)
        total += tl.where(target != ignore_index, 1, 0)
    tl.store(count_ptr, tl.maximum(tl.sum(total, axis=0), 1).to(tl.float32))


@triton.jit
def columns(start, GROUPS: tl.constexpr, GROUP: tl.constexpr):
    """The columns of a piece of a row, in groups of 16 bytes."""
    group = tl.arange(0, GROUPS).to(tl.int64)[:, None]
    return start + group * GROUP + tl.arange(0, GROUP)[None, :]


@triton.jit(do_not_specialize=["ignore_index"])
def cross_entropy_kernel(
    x_ptr, target_ptr, grad_ptr, count_ptr, loss_ptr, out_ptr, cols: tl.int64, x_row: tl.int64,
    out_row: tl.int64, ignore_index: tl.int64, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row's loss, its gradient, or both, for those of loss_ptr and out_ptr that are given.

    Both are multiplied by the row's element of grad_ptr, or divided by the number at count_ptr.
    """
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_row
    target = tl.load(target_ptr + row).to(tl.int64)
    ignored = target == ignore_index
    known = (target >= 0) & (target < cols)
    # Read before the row may be overwritten. A target that is not a column makes everything NaN.
    hit = tl.load(x_ptr + target, mask=known, other=float("nan")).to(tl.float32)
    factor = 1.0
    if grad_ptr is not None:
        factor = tl.load(grad_ptr + row).to(tl.float32)
    if count_ptr is not None:
        factor = 1 / tl.load(count_ptr)
    # A thread has whole groups, so one exponential per group rescales what it has summed up.
    width: tl.constexpr = 128 // x_ptr.dtype.element_ty.primitive_bitwidth
    groups: tl.constexpr = BLOCK // width
    highest = tl.full((groups,), float("-inf"), tl.float32)
    total = tl.zeros((groups,), tl.float32)
    for start in range(0, cols, BLOCK):
        col = columns(start, groups, width)
        x = tl.load(x_ptr + col, mask=col < cols, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(highest, tl.max(x, axis=1))
        # A group that has seen nothing but -inf would be scaled by exp(-inf + inf).
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(highest - base) + tl.sum(tl.exp(x - base[:, None]), axis=1)
        highest = higher
    top = tl.max(highest, axis=0)
    total_of_row = tl.sum(total * tl.exp(highest - top), axis=0)
    if loss_ptr is not None:
        loss = (tl.log(total_of_row) + top - hit) * factor
        tl.store(loss_ptr + row, tl.where(ignored, 0.0, loss))
    if out_ptr is not None:
        out_ptr += row * out_row
        # NaN, as the loss, if there is no such column.
        scale = tl.where(known, factor, float("nan")) / total_of_row
        for start in range(0, cols, BLOCK):
            col = columns(start, groups, width)
            mask = col < cols
            x = tl.load(x_ptr + col, mask=mask, other=float("-inf")).to(tl.float32)
            value = tl.exp(x - top) * scale - tl.where(col == target, factor, 0.0)
            tl.store(out_ptr + col, tl.where(ignored, 0.0, value), mask=mask)


def expect_targets(logits: Tensor, target: Tensor) -> None:
    expect_floats(logits=logits)
    if logits.dim() != 2:
        raise ValueError(f"logits must be a matrix, found {logits.dim()} dimensions")
    if target.dtype != torch.int64:
        raise TypeError(f"target must be i64, found {target.dtype}")
    expect_shape("target", target, logits.shape[:1])


@opforge.op("ops::cross_entropy_backward")
def cross_entropy_backward(
    grad: Tensor, logits: Tensor, target: Tensor, ignore_index: int = -100
) -> Tensor:
    """The gradient of logits, given that of cross_entropy(logits, target, ignore_index)."""
    expect_targets(logits, target)
    expect_floats(grad=grad)
    expect_shape("grad", grad, target.shape)
    out = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    if logits.numel() > 0:
        logits, grad = dense_rows(logits), grad.contiguous()
        rows, cols = logits.shape
        cross_entropy_kernel[(rows,)](
            logits, target.contiguous(), grad, None, None, out, cols, logits.stride(0), cols,
            ignore_index, BLOCK=PIECE, num_warps=WARPS,
        )  # fmt: skip
    return out


def save(ctx, inputs, output):  # noqa: ARG001  # torch's parameters
    logits, target, ctx.ignore_index = inputs
    ctx.save_for_backward(logits, target)


def backward(ctx, grad):
    return cross_entropy_backward(grad, *ctx.saved_tensors, ctx.ignore_index), None, None


@opforge.op("ops::cross_entropy", backward=backward, setup_context=save)
def cross_entropy(logits: Tensor, target: Tensor, ignore_index: int = -100) -> Tensor:
    """The loss of each row, in fp32: 0 for an ignored target, NaN where that is not a column."""
    expect_targets(logits, target)
    rows, cols = logits.shape
    loss = torch.empty((rows,), dtype=torch.float32, device=logits.device)
    if rows > 0:
        logits = dense_rows(logits)
        cross_entropy_kernel[(rows,)](
            logits, target.contiguous(), None, None, loss, None, cols, logits.stride(0), cols,
            ignore_index, BLOCK=PIECE, num_warps=WARPS,
        )  # fmt: skip
    return loss


@opforge.op("ops::cross_entropy_in_place", mutates_args=("logits",))
def cross_entropy_in_place(
    logits: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum"] = "mean",
) -> Tensor:
    """The share of each row in the loss; logits become the gradient of the shares' sum.

    The loss is the mean over rows that are not ignored, or their sum. If all are, it is 0.
    """
    expect_targets(logits, target)
    rows, cols = logits.shape
    if logits.stride(1) != 1:
        raise ValueError("the rows of logits must be dense: the last stride must be 1")
    loss = torch.empty((rows,), dtype=torch.float32, device=logits.device)
    if rows > 0:
        target, count = target.contiguous(), None
        if reduction == "mean":
            count = torch.empty((1,), dtype=torch.float32, device=logits.device)
            target_count_kernel[(1,)](
                target, count, rows, ignore_index, BLOCK=TARGETS, num_warps=16
            )
        cross_entropy_kernel[(rows,)](
            logits, target, None, count, loss, logits, cols, logits.stride(0), logits.stride(0),
            ignore_index, BLOCK=PIECE, num_warps=WARPS,
        )  # fmt: skip
    return loss


given = {
    "logits": native.tensor("rows cols", dtype="T", layout="strided"),
    "target": native.tensor("rows", dtype="i64"),
    "ignore_index": native.scalar("i64"),
    "T": FLOATS,
}
native.declare(cross_entropy, **given)
native.declare(cross_entropy_backward, grad=native.tensor("rows", dtype="fp32"), **given)
native.declare(cross_entropy_in_place, reduction=native.choice("mean", "sum"), **given)


def cross_entropy_reference(logits, target, ignore_index=-100):
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return functional.cross_entropy(wide, target, ignore_index=ignore_index, reduction="none")


def cross_entropy_backward_reference(grad, logits, target, ignore_index=-100):
    known = target != ignore_index
    hit = functional.one_hot(torch.where(known, target, 0), logits.shape[1])
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return ((wide.softmax(-1) - hit) * (grad * known)[:, None]).to(logits.dtype)


def cross_entropy_in_place_reference(logits, target, ignore_index=-100, reduction="mean"):
    loss = cross_entropy_reference(logits, target, ignore_index)
    factor = torch.ones_like(loss)
    if reduction == "mean":
        factor = factor / (target != ignore_index).sum().clamp(min=1)
    logits.copy_(cross_entropy_backward_reference(factor, logits, target, ignore_index))
    return loss * factor


def cross_entropy_inputs():
    return (torch.randn(3, 128), torch.randint(128, (3,))), {}


def cross_entropy_backward_inputs():
    return (torch.randn(3), torch.randn(3, 128), torch.randint(128, (3,))), {}


cross_entropy_in_place_inputs = cross_entropy_inputs
