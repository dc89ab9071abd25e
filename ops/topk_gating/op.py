"""The router of a mixture of experts: the weights and indices of each token's best experts."""

import torch
import triton
import triton.language as tl
from torch import Tensor

import opforge
from opforge import native

from ..rows import FLOATS, dense_rows, expect_floats

MOST_EXPERTS = 512
MOST_CHOSEN = 32
# Logits per program: 16 per thread of 4 warps.
TILE = 2048


@triton.jit
def swapped(bits):
    """Bits of floats as integers of the same order, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit(do_not_specialize=["rows", "k"])
def topk_gating_kernel(
    x_ptr, weights_ptr, indices_ptr, rows: tl.int64, experts: tl.int64, x_row: tl.int64,
    k: tl.int32, RENORMALIZE: tl.constexpr, ROWS: tl.constexpr, EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    expert = tl.arange(0, EXPERTS)[None, :]
    mask = (row[:, None] < rows) & (expert < experts)
    at = x_ptr + row[:, None] * x_row + expert
    # Adding 0 makes -0 equal to 0.
    x = tl.load(at, mask=mask, other=0.0).to(tl.float32) + 0.0
    x = tl.where(expert < experts, x, float("-inf"))
    # What is chosen, or does not exist, becomes the least integer, which is below -inf.
    keys = tl.where(expert < experts, swapped(x.to(tl.int32, bitcast=True)), -2147483648)
    slot = tl.arange(0, CHOSEN)[None, :]
    values = tl.full((ROWS, CHOSEN), float("-inf"), tl.float32)
    chosen = tl.zeros((ROWS, CHOSEN), tl.int32)
    for i in range(k):
        key, index = tl.max(keys, axis=1, return_indices=True)
        value = swapped(key).to(tl.float32, bitcast=True)
        values = tl.where(slot == i, value[:, None], values)
        chosen = tl.where(slot == i, index[:, None], chosen)
        keys = tl.where(expert == index[:, None], -2147483648, keys)
    top = tl.max(x, axis=1)
    shares = tl.exp(values - top[:, None])
    total = tl.sum(shares, axis=1) if RENORMALIZE else tl.sum(tl.exp(x - top[:, None]), axis=1)
    to = row[:, None] * k + slot
    mask = (row[:, None] < rows) & (slot < k)
    tl.store(weights_ptr + to, shares / total[:, None], mask=mask)
    tl.store(indices_ptr + to, chosen, mask=mask)


@opforge.op("ops::topk_gating")
def topk_gating(logits: Tensor, k: int, renormalize: bool = True) -> tuple[Tensor, Tensor]:
    """The k largest shares of each row's softmax, in fp32, and their indices, in i32.

    They come in descending order; of equal logits the lowest index is first. With renormalize, the
    weights of a row sum to 1.
    """
    expect_floats(logits=logits)
    if logits.dim() != 2:
        raise ValueError(f"logits must be a matrix, found {logits.dim()} dimensions")
    rows, experts = logits.shape
    if experts > MOST_EXPERTS:
        raise ValueError(f"logits must have at most {MOST_EXPERTS} experts, found {experts}")
    if k < 1 or k > MOST_CHOSEN or k > experts:
        most = f"{MOST_CHOSEN} and at most the {experts} experts"
        raise ValueError(f"k must be from 1 to {most}, found {k}")
    weights = torch.empty((rows, k), dtype=torch.float32, device=logits.device)
    indices = torch.empty((rows, k), dtype=torch.int32, device=logits.device)
    if rows > 0:
        logits = dense_rows(logits)
        block = triton.next_power_of_2(max(experts, 128))
        topk_gating_kernel[(triton.cdiv(rows, TILE // block),)](
            logits, weights, indices, rows, experts, logits.stride(0), k,
            RENORMALIZE=renormalize, ROWS=TILE // block, EXPERTS=block, CHOSEN=MOST_CHOSEN,
        )  # fmt: skip
    return weights, indices


native.declare(
    topk_gating,
    logits=native.tensor("rows experts", dtype="T", layout="strided"),
    k=native.scalar("i64"),
    renormalize=native.scalar("bool"),
    dims={"experts": (1, MOST_EXPERTS), "k": (1, MOST_CHOSEN)},
    T=FLOATS,
)


def topk_gating_reference(logits, k, renormalize=True):
    wide = logits if logits.dtype == torch.float64 else logits.float()
    # topk leaves open which of equal logits comes first.
    indices = wide.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    weights = wide.softmax(-1).gather(-1, indices)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights, indices.int()


def topk_gating_inputs():
    return (torch.randn(3, 16), 2), {}
