"""Attention of one query per sequence over keys and values that lie in pages, for decoding."""

import torch
import triton
import triton.language as tl
from torch import Tensor

import opforge
from opforge import native

from ..rows import FLOATS, expect_floats, expect_shape

# Keys of a program, and of one step of it; queries that share keys are computed 16 at a time.
SPAN, KEYS, ROWS = 512, 32, 16


@triton.jit
def paged_attention_kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, parts_ptr, sums_ptr, page: tl.int64,
    group: tl.int64, head: tl.int64, q_batch: tl.int64, q_head: tl.int64,
    k_page: tl.int64, k_token: tl.int64, k_head: tl.int64,
    v_page: tl.int64, v_token: tl.int64, v_head: tl.int64, table_row: tl.int64, heads: tl.int64,
    blocks: tl.int64, scale,
    HEAD: tl.constexpr, SPAN: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One part of the keys, for up to ROWS queries that share them."""
    part, batch = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    shared = tl.program_id(1) // blocks
    within = tl.program_id(1) % blocks * ROWS + tl.arange(0, ROWS).to(tl.int64)
    col = tl.arange(0, HEAD)
    wide, mine = (col < head)[None, :], (within < group)[:, None]
    reader = shared * group + within
    q_at = q_ptr + batch * q_batch + reader[:, None] * q_head + col[None, :]
    q = tl.load(q_at, mask=mine & wide, other=0.0)
    length = tl.load(lengths_ptr + batch).to(tl.int64)
    best = tl.full((ROWS,), -1e38, tl.float32)
    sums = tl.zeros((ROWS,), tl.float32)
    total = tl.zeros((ROWS, HEAD), tl.float32)
    log_scale = tl.cast(scale, tl.float32) * 1.4426950408889634
    for start in range(part * SPAN, tl.minimum((part + 1) * SPAN, length), KEYS):
        key = start + tl.arange(0, KEYS).to(tl.int64)
        is_seen = key < length
        at = tl.load(table_ptr + batch * table_row + key // page, mask=is_seen, other=0)
        at = at.to(tl.int64)
        k_at = k_ptr + at * k_page + key % page * k_token + shared * k_head
        k = tl.load(k_at[:, None] + col[None, :], mask=is_seen[:, None] & wide, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * log_scale
        scores = tl.where(is_seen[None, :], scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(best - higher)
        v_at = v_ptr + at * v_page + key % page * v_token + shared * v_head
        v = tl.load(v_at[:, None] + col[None, :], mask=is_seen[:, None] & wide, other=0.0)
        total = tl.dot(weights.to(v.dtype), v, total * shrink[:, None], input_precision="ieee")
        sums = sums * shrink + tl.sum(weights, 1)
        best = higher
    # Zeros without keys: `total` is 0 then.
    divisor = tl.where(sums > 0, sums, 1.0)
    place = (batch * heads + reader) * tl.num_programs(0) + part
    part_at = parts_ptr + place[:, None] * head + col[None, :]
    tl.store(part_at, total / divisor[:, None], mask=mine & wide)
    tl.store(
        sums_ptr + place, tl.where(sums > 0, best + tl.log2(divisor), -1e38), mask=within < group
    )


@triton.jit
def paged_sum_kernel(
    parts_ptr, sums_ptr, out_ptr, parts: tl.int64, head: tl.int64,
    HEAD: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The parts of one query, each weighted by its sum of exponentials."""
    query = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, HEAD)
    best = tl.full((), -1e38, tl.float32)
    sums = tl.full((), 0.0, tl.float32)
    total = tl.zeros((HEAD,), tl.float32)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS).to(tl.int64)
        logs = tl.load(sums_ptr + query * parts + part, mask=part < parts, other=-1e38)
        higher = tl.maximum(best, tl.max(logs, 0))
        weights = tl.where(logs > -1e38, tl.exp2(logs - higher), 0.0)
        at = parts_ptr + (query * parts + part)[:, None] * head + col[None, :]
        mask = (part < parts)[:, None] & (col < head)[None, :]
        shrink = tl.exp2(best - higher)
        total = total * shrink + tl.sum(tl.load(at, mask=mask, other=0.0) * weights[:, None], 0)
        sums = sums * shrink + tl.sum(weights, 0)
        best = higher
    value = total / tl.where(sums > 0, sums, 1.0)
    tl.store(out_ptr + query * head + col, value, mask=col < head)


@opforge.op("ops::paged_attention")
def paged_attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, table: Tensor, lengths: Tensor, scale: float = 1.0
) -> Tensor:
    """softmax(q @ k.mT * scale) @ v for one query per sequence, q of (batch, heads, dim).

    Keys and values are (pages, tokens of a page, heads, dim). Sequence i has lengths[i] of them, in
    the pages table[i, 0], table[i, 1] and so on; nothing checks that these exist. Several heads of
    q may share one of the keys. A sequence without keys gives zeros.
    """
    expect_floats(q=q, k_pages=k_pages, v_pages=v_pages)
    if not q.dtype == k_pages.dtype == v_pages.dtype:
        found = f"{q.dtype}, {k_pages.dtype} and {v_pages.dtype}"
        raise TypeError(f"q, k_pages and v_pages must have the same dtype, found {found}")
    batch, heads, head = q.shape
    pages, page, shared, _ = k_pages.shape
    expect_shape("k_pages", k_pages, (pages, page, shared, head))
    expect_shape("v_pages", v_pages, k_pages.shape)
    expect_shape("table", table, (batch, table.shape[1]))
    expect_shape("lengths", lengths, (batch,))
    if head > 256:
        raise ValueError(f"heads must have at most 256 elements, found {head}")
    if heads % shared != 0:
        raise ValueError(
            f"the heads of q must be a multiple of those of k_pages, found {heads} and {shared}"
        )
    for name, x in (("table", table), ("lengths", lengths)):
        if x.dtype != torch.int32:
            raise TypeError(f"{name} must be int32, found {x.dtype}")
    dense = {"q": q, "k_pages": k_pages, "v_pages": v_pages, "table": table, "lengths": lengths}
    for name, x in dense.items():
        if x.stride(-1) != 1:
            raise ValueError(f"the last dimension of {name} must be dense")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if out.numel() == 0:
        return out
    group = heads // shared
    parts = torch.sym_max(triton.cdiv(table.shape[1] * page, SPAN), 1)
    sums = torch.empty((batch, heads, parts), dtype=torch.float32, device=q.device)
    made = torch.empty((batch, heads, parts, head), dtype=torch.float32, device=q.device)
    wide = max(triton.next_power_of_2(head), 16)
    blocks = triton.cdiv(group, ROWS)
    paged_attention_kernel[(parts, shared * blocks, batch)](
        q, k_pages, v_pages, table, lengths, made, sums, page, group, head, *q.stride()[:2],
        *k_pages.stride()[:3], *v_pages.stride()[:3], table.stride(0), heads, blocks, scale,
        HEAD=wide, SPAN=SPAN, KEYS=KEYS, ROWS=ROWS, num_warps=4, num_stages=3,
    )  # fmt: skip
    paged_sum_kernel[(batch * heads,)](made, sums, out, parts, head, HEAD=wide, PARTS=16)
    return out


native.declare(
    paged_attention,
    q=native.tensor("batch heads head", dtype="T"),
    k_pages=native.tensor("pages page shared head", dtype="T"),
    v_pages=native.tensor("pages page shared head", dtype="T"),
    table=native.tensor("batch most", dtype="i32"),
    lengths=native.tensor("batch", dtype="i32"),
    scale=native.scalar("fp32"),
    dims={"head": [64, 128], "shared": (1, 1 << 16)},
    T=FLOATS,
)


def paged_attention_reference(q, k_pages, v_pages, table, lengths, scale=1.0):
    group = q.shape[1] // k_pages.shape[2]
    k, v = (x[table.long()].flatten(1, 2).repeat_interleave(group, 2) for x in (k_pages, v_pages))
    scores = torch.einsum("bhd,bthd->bht", q.float(), k.float()) * scale
    is_seen = torch.arange(k.shape[1], device=q.device) < lengths[:, None]
    weights = scores.masked_fill(~is_seen[:, None], -torch.inf).softmax(-1).nan_to_num()
    return torch.einsum("bht,bthd->bhd", weights, v.float()).to(q.dtype)


def paged_attention_inputs():
    table = torch.tensor([[4, 1], [0, 2], [3, 0]], dtype=torch.int32)
    q, pages = torch.randn(3, 4, 64), torch.randn(2, 5, 8, 2, 64)
    return (q, *pages, table, torch.tensor([16, 3, 9], dtype=torch.int32), 0.125), {}
