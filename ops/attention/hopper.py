"""Attention on sm_90, in Gluon: one warp copies keys and values, two groups compute 64 rows each.

A group asks for the products of the next keys before it takes the softmax of these, so tensor cores
work meanwhile.
"""

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

# Triton 3.8 gave them these names.
load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared

# Queries of a program, and keys of a step.
ROWS, KEYS, STAGES = 128, 128, 2
_TYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


@gluon.jit
def extent(q_starts, k_starts, q_len, k_len, CAUSAL: gl.constexpr, VARLEN: gl.constexpr):
    """The program's tile, where its sequences start, how long they are, and how many steps it has.

    The last queries have the most keys under a causal mask, so they come first.
    """
    tile = gl.num_programs(0) - 1 - gl.program_id(0)
    batch = gl.program_id(2)
    q_start = 0
    k_start = 0
    if VARLEN:
        q_start = gl.load(q_starts + batch)
        k_start = gl.load(k_starts + batch)
        q_len = gl.load(q_starts + batch + 1) - q_start
        k_len = gl.load(k_starts + batch + 1) - k_start
        batch = batch * 0
    row = tile * 128
    # The last query sees the last key.
    shift = k_len - q_len
    seen = k_len
    full = k_len
    if CAUSAL:
        seen = gl.minimum(gl.maximum(row + 128 + shift, 0), k_len)
        full = gl.minimum(gl.maximum(row + 1 + shift, 0), k_len)
    steps = gl.cdiv(seen, 128)
    if row >= q_len:
        steps = steps * 0
    return batch, row, q_start, k_start, q_len, k_len, steps, full // 128


@gluon.jit
def copy_part(
    q_desc, k_desc, v_desc, out_ptr, lse_ptr, q_starts, k_starts, held, barriers, sizes, scale,
    CAUSAL: gl.constexpr, VARLEN: gl.constexpr,
):  # fmt: skip
    """Fill each stage as soon as both groups have read it."""
    q_held, k_held, v_held = held
    q_ready, k_ready, k_empty, v_ready, v_empty = barriers
    q_len, k_len, group, out_batch, out_head, out_row, lse_batch, lse_head = sizes
    STAGES: gl.constexpr = k_held.shape[0]
    batch, row, q_start, k_start, q_len, k_len, steps, full = extent(
        q_starts, k_starts, q_len, k_len, CAUSAL, VARLEN
    )
    head = gl.program_id(1)
    if steps > 0:
        mbarrier.expect(q_ready, 2 * q_desc.block_type.nbytes)
        for half in gl.static_range(2):
            at = [batch, head, q_start + row + half * 64, 0]
            load_tile(q_desc, at, q_ready, q_held.index(half))
    stage = 0
    phase = 1
    for i in range(steps):
        at = [batch, head // group, k_start + (steps - 1 - i) * 128, 0]
        mbarrier.wait(k_empty.index(stage), phase)
        mbarrier.expect(k_ready.index(stage), k_desc.block_type.nbytes)
        load_tile(k_desc, at, k_ready.index(stage), k_held.index(stage))
        mbarrier.wait(v_empty.index(stage), phase)
        mbarrier.expect(v_ready.index(stage), v_desc.block_type.nbytes)
        load_tile(v_desc, at, v_ready.index(stage), v_held.index(stage))
        stage += 1
        if stage == STAGES:
            stage = 0
            phase ^= 1


@gluon.jit
def softmax_step(scores, best, scale, limit, key, MASKED: gl.constexpr):
    """exp2(scores - their maximum), what earlier sums are to be multiplied by, and the maximum."""
    if MASKED:
        scores = gl.where(key[None, :] < limit[:, None], scores, float("-inf"))
    higher = gl.maximum(best, gl.max(scores, 1) * scale)
    return gl.exp2(scores * scale - higher[:, None]), gl.exp2(best - higher), higher


@gluon.jit
def attend_step(
    q, k_held, v_held, barriers, total, weights, best, sums, stage, phase, scale, limit, key,
    MASKED: gl.constexpr, HEAD: gl.constexpr,
):  # fmt: skip
    """The scores of one more block of keys, while the values of the one before are added."""
    q_ready, k_ready, k_empty, v_ready, v_empty = barriers
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD, 16])
    after = stage + 1
    after_phase = phase
    if after == k_held.shape[0]:
        after = 0
        after_phase ^= 1
    zeros = gl.zeros((64, 128), gl.float32, s_layout)
    keys = k_held.index(after).reshape([128, HEAD]).permute((1, 0))
    values = v_held.index(stage).reshape([128, HEAD])
    mbarrier.wait(k_ready.index(after), after_phase)
    scores_token = warpgroup_mma(q, keys, zeros, use_acc=False, is_async=True)
    mbarrier.wait(v_ready.index(stage), phase)
    total_token = warpgroup_mma(weights, values, total, is_async=True)
    scores = warpgroup_mma_wait(1, deps=[scores_token])
    mbarrier.arrive(k_empty.index(after))
    found, shrink, best = softmax_step(scores, best, scale, limit, key, MASKED)
    sums = sums * shrink + gl.sum(found, 1)
    total, weights = warpgroup_mma_wait(0, deps=[total_token, weights])
    mbarrier.arrive(v_empty.index(stage))
    total *= gl.convert_layout(shrink, gl.SliceLayout(1, o_layout))[:, None]
    weights = gl.convert_layout(found.to(k_held.dtype), gl.DotOperandLayout(0, o_layout, 2))
    return total, weights, best, sums, after, after_phase


@gluon.jit
def attend(
    q_desc, k_desc, v_desc, out_ptr, lse_ptr, q_starts, k_starts, held, barriers, sizes, scale,
    CAUSAL: gl.constexpr, VARLEN: gl.constexpr, half: gl.constexpr,
):  # fmt: skip
    """64 queries over all keys, from the last block of keys to the first."""
    q_held, k_held, v_held = held
    q_ready, k_ready, k_empty, v_ready, v_empty = barriers
    q_len, k_len, group, out_batch, out_head, out_row, lse_batch, lse_head = sizes
    HEAD: gl.constexpr = k_desc.block_shape[3]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD, 16])
    batch, row, q_start, k_start, q_len, k_len, steps, full = extent(
        q_starts, k_starts, q_len, k_len, CAUSAL, VARLEN
    )
    head = gl.program_id(1)
    row += half * 64
    s_rows = row + gl.arange(0, 64, gl.SliceLayout(1, s_layout))
    # How many keys each query sees.
    limit = s_rows * 0 + k_len
    if CAUSAL:
        limit = gl.minimum(s_rows + (k_len - q_len + 1), k_len)
    key = gl.arange(0, 128, gl.SliceLayout(0, s_layout))
    # Below any score, and finite: a query without keys then has weights of 0.
    best = gl.full((64,), -1e38, gl.float32, gl.SliceLayout(1, s_layout))
    sums = gl.zeros((64,), gl.float32, gl.SliceLayout(1, s_layout))
    total = gl.zeros((64, HEAD), gl.float32, o_layout)
    if steps > 0:
        q = q_held.index(half).reshape([64, HEAD])
        zeros = gl.zeros((64, 128), gl.float32, s_layout)
        mbarrier.wait(q_ready, 0)
        mbarrier.wait(k_ready.index(0), 0)
        keys = k_held.index(0).reshape([128, HEAD]).permute((1, 0))
        scores = warpgroup_mma(q, keys, zeros, use_acc=False)
        mbarrier.arrive(k_empty.index(0))
        found, shrink, best = softmax_step(
            scores, best, scale, limit, (steps - 1) * 128 + key, True
        )
        sums = gl.sum(found, 1)
        weights = gl.convert_layout(found.to(k_held.dtype), gl.DotOperandLayout(0, o_layout, 2))
        stage = 0
        phase = 0
        for i in range(1, gl.minimum(steps - full, steps)):
            total, weights, best, sums, stage, phase = attend_step(
                q, k_held, v_held, barriers, total, weights, best, sums, stage, phase, scale,
                limit, (steps - 1 - i) * 128 + key, True, HEAD,
            )  # fmt: skip
        for _ in range(gl.maximum(steps - full, 1), steps):
            total, weights, best, sums, stage, phase = attend_step(
                q, k_held, v_held, barriers, total, weights, best, sums, stage, phase, scale,
                limit, key, False, HEAD,
            )  # fmt: skip
        mbarrier.wait(v_ready.index(stage), phase)
        values = v_held.index(stage).reshape([128, HEAD])
        total = warpgroup_mma(weights, values, total)
    rows = row + gl.arange(0, 64, gl.SliceLayout(1, o_layout))
    at = q_start + rows
    cols = gl.arange(0, HEAD, gl.SliceLayout(0, o_layout))
    # Zeros without keys: `total` is 0 then.
    divisor = gl.where(sums > 0, sums, 1.0)
    o_divisor = gl.convert_layout(divisor, gl.SliceLayout(1, o_layout))
    out_at = out_ptr + batch.to(gl.int64) * out_batch + head.to(gl.int64) * out_head
    out_at = out_at + at.to(gl.int64)[:, None] * out_row + cols[None, :]
    value = (total / o_divisor[:, None]).to(out_ptr.dtype.element_ty)
    gl.store(out_at, value, mask=(rows < q_len)[:, None])
    lse = gl.where(sums > 0, (best + gl.log2(divisor)) * 0.6931471805599453, float("-inf"))
    lse_at = lse_ptr + batch.to(gl.int64) * lse_batch + head.to(gl.int64) * lse_head
    gl.store(lse_at + q_start + s_rows, lse, mask=s_rows < q_len)


@gluon.jit
def attend_above(
    q_desc, k_desc, v_desc, out_ptr, lse_ptr, q_starts, k_starts, held, barriers, sizes, scale,
    CAUSAL: gl.constexpr, VARLEN: gl.constexpr,
):  # fmt: skip
    attend(
        q_desc, k_desc, v_desc, out_ptr, lse_ptr, q_starts, k_starts, held, barriers, sizes, scale,
        CAUSAL, VARLEN, 0,
    )  # fmt: skip


@gluon.jit
def attend_below(
    q_desc, k_desc, v_desc, out_ptr, lse_ptr, q_starts, k_starts, held, barriers, sizes, scale,
    CAUSAL: gl.constexpr, VARLEN: gl.constexpr,
):  # fmt: skip
    attend(
        q_desc, k_desc, v_desc, out_ptr, lse_ptr, q_starts, k_starts, held, barriers, sizes, scale,
        CAUSAL, VARLEN, 1,
    )  # fmt: skip


@gluon.jit
def run_parts(given):
    gl.warp_specialize(
        [(attend_above, given), (attend_below, given), (copy_part, given)], [4, 1], [240, 24]
    )


@gluon.jit(do_not_specialize=["q_len", "k_len", "group"])
def hopper_attention_kernel(
    q_desc, k_desc, v_desc, out_ptr, lse_ptr, q_starts, k_starts, q_len: gl.int32, k_len: gl.int32,
    group: gl.int32, out_batch: gl.int64, out_head: gl.int64, out_row: gl.int64,
    lse_batch: gl.int64, lse_head: gl.int64, scale,
    CAUSAL: gl.constexpr, VARLEN: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    q_held = gl.allocate_shared_memory(q_desc.dtype, [2] + q_desc.block_shape, q_desc.layout)
    k_held = gl.allocate_shared_memory(k_desc.dtype, [STAGES] + k_desc.block_shape, k_desc.layout)
    v_held = gl.allocate_shared_memory(v_desc.dtype, [STAGES] + v_desc.block_shape, v_desc.layout)
    q_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_ready, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_ready.index(stage), count=1)
        mbarrier.init(v_ready.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=2)
        mbarrier.init(v_empty.index(stage), count=2)
    # A tuple that a variable holds would lose what is constexpr.
    run_parts((
        q_desc, k_desc, v_desc, out_ptr, lse_ptr, q_starts, k_starts, (q_held, k_held, v_held),
        (q_ready, k_ready, k_empty, v_ready, v_empty),
        (q_len, k_len, group, out_batch, out_head, out_row, lse_batch, lse_head), scale,
        CAUSAL, VARLEN,
    ))  # fmt: skip


def described(x: Tensor, rows: int) -> TensorDescriptor:
    # Layouts are computed from plain numbers.
    block = [1, 1, rows, int(x.shape[3])]
    layout = gl.NVMMASharedLayout.get_default_for(block, _TYPES[x.dtype])
    return TensorDescriptor.from_tensor(x, block, layout)


def fits_hopper(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether this kernel takes them: halves, heads of 64 or 128, what tensor maps can describe.

    `&` makes it one question, so that a library has one path for yes and one for no.
    """
    if q.dtype not in _TYPES or q.shape[3] not in {64, 128}:
        return False
    fits = k.shape[2] > 0
    for x in (q, k, v):
        fits &= x.data_ptr() % 16 == 0
        for stride in x.stride()[:-1]:
            fits &= stride * x.dtype.itemsize % 16 == 0
    return bool(fits)


def attend_on_hopper(
    q: Tensor, k: Tensor, v: Tensor, starts: tuple[Tensor, Tensor] | None, out: Tensor, lse: Tensor,
    grid: tuple[int, int, int], scale: float, causal: bool,
) -> None:  # fmt: skip
    """(batch, heads, tokens, dim); with starts, sequences lie one behind the other in one batch."""
    q_starts, k_starts = (lse, lse) if starts is None else starts
    hopper_attention_kernel[grid](
        described(q, 64), described(k, KEYS), described(v, KEYS), out, lse, q_starts, k_starts,
        q.shape[2], k.shape[2], q.shape[1] // k.shape[1], out.stride(0), out.stride(1),
        out.stride(2), lse.stride(0), lse.stride(1), scale * 1.4426950408889634,
        CAUSAL=causal, VARLEN=starts is not None, STAGES=STAGES, num_warps=4,
    )  # fmt: skip
