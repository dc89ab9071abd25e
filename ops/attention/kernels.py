"""Attention and its gradients for any GPU; sequences may lie one behind the other (VARLEN).

Queries and keys count from the start of their sequence, and the last query sees the last key.
"""

import triton
import triton.language as tl


@triton.jit
def lengths(q_starts, k_starts, batch, q_len, k_len, VARLEN: tl.constexpr):
    """Where the sequences of a batch start and how long they are; and the batch, 0 with VARLEN."""
    q_start = tl.cast(0, tl.int64)
    k_start = tl.cast(0, tl.int64)
    if VARLEN:
        q_start = tl.load(q_starts + batch).to(tl.int64)
        k_start = tl.load(k_starts + batch).to(tl.int64)
        q_len = tl.load(q_starts + batch + 1).to(tl.int64) - q_start
        k_len = tl.load(k_starts + batch + 1).to(tl.int64) - k_start
        batch = batch * 0
    return batch.to(tl.int64), q_start, k_start, tl.cast(q_len, tl.int64), tl.cast(k_len, tl.int64)


@triton.jit
def rows_at(ptr, row, col, limit, stride, head):
    """A block of rows of one head, zeros beyond them."""
    at = ptr + row[:, None] * stride + col[None, :]
    return tl.load(at, mask=(row < limit)[:, None] & (col < head)[None, :], other=0.0)


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, q_starts, k_starts,
    q_len: tl.int64, k_len: tl.int64, head: tl.int64, group: tl.int64,
    q_batch: tl.int64, q_head: tl.int64, q_row: tl.int64,
    k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64,
    v_batch: tl.int64, v_head: tl.int64, v_row: tl.int64,
    out_batch: tl.int64, out_head: tl.int64, out_row: tl.int64,
    lse_batch: tl.int64, lse_head: tl.int64, scale,
    CAUSAL: tl.constexpr, VARLEN: tl.constexpr, HEAD: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):  # fmt: skip
    """The last queries have the most keys under a causal mask, so they come first."""
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS
    mine, batch = tl.program_id(1).to(tl.int64), tl.program_id(2)
    batch, q_start, k_start, q_len, k_len = lengths(q_starts, k_starts, batch, q_len, k_len, VARLEN)
    shift = k_len - q_len
    row = first + tl.arange(0, ROWS).to(tl.int64)
    col = tl.arange(0, HEAD)
    q_ptr += batch * q_batch + mine * q_head + q_start * q_row
    k_ptr += batch * k_batch + mine // group * k_head + k_start * k_row
    v_ptr += batch * v_batch + mine // group * v_head + k_start * v_row
    q = rows_at(q_ptr, row, col, q_len, q_row, head)
    # Below any score, and finite: a query without keys then has weights of 0.
    best = tl.full((ROWS,), -1e38, tl.float32)
    sums = tl.zeros((ROWS,), tl.float32)
    total = tl.zeros((ROWS, HEAD), tl.float32)
    seen = k_len
    if CAUSAL:
        seen = tl.minimum(first + ROWS + shift, k_len)
    log_scale = tl.cast(scale, tl.float32) * 1.4426950408889634
    for start in range(0, tl.where(first < q_len, seen, 0), KEYS):
        key = start + tl.arange(0, KEYS).to(tl.int64)
        k = rows_at(k_ptr, key, col, k_len, k_row, head)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * log_scale
        is_seen = (key < k_len)[None, :]
        if CAUSAL:
            is_seen = is_seen & (key[None, :] <= row[:, None] + shift)
        scores = tl.where(is_seen, scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(best - higher)
        v = rows_at(v_ptr, key, col, k_len, v_row, head)
        total = tl.dot(weights.to(v.dtype), v, total * shrink[:, None], input_precision="ieee")
        sums = sums * shrink + tl.sum(weights, 1)
        best = higher
    # Zeros without keys: `total` is 0 then.
    divisor = tl.where(sums > 0, sums, 1.0)
    at = q_start + row
    out_at = out_ptr + batch * out_batch + mine * out_head + at[:, None] * out_row + col[None, :]
    mask = row < q_len
    tl.store(out_at, total / divisor[:, None], mask=mask[:, None] & (col < head)[None, :])
    lse = tl.where(sums > 0, (best + tl.log2(divisor)) * 0.6931471805599453, float("-inf"))
    tl.store(lse_ptr + batch * lse_batch + mine * lse_head + at, lse, mask=mask)


@triton.jit
def delta_kernel(
    grad_ptr, out_ptr, delta_ptr, tokens: tl.int64, head: tl.int64,
    grad_batch: tl.int64, grad_head: tl.int64, grad_row: tl.int64,
    out_batch: tl.int64, out_head: tl.int64, out_row: tl.int64,
    delta_batch: tl.int64, delta_head: tl.int64, HEAD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The sum of grad * out for each query."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    mine, batch = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    col = tl.arange(0, HEAD)
    grad_ptr += batch * grad_batch + mine * grad_head
    out_ptr += batch * out_batch + mine * out_head
    grad = rows_at(grad_ptr, row, col, tokens, grad_row, head).to(tl.float32)
    out = rows_at(out_ptr, row, col, tokens, out_row, head).to(tl.float32)
    at = delta_ptr + batch * delta_batch + mine * delta_head + row
    tl.store(at, tl.sum(grad * out, 1), mask=row < tokens)


@triton.jit
def weights_of(q, k, row, key, lse, q_len, k_len, log_scale, CAUSAL: tl.constexpr):
    """The softmax of a block, as the forward had it."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * log_scale
    is_seen = (key < k_len)[None, :] & (row < q_len)[:, None]
    if CAUSAL:
        is_seen = is_seen & (key[None, :] <= row[:, None] + (k_len - q_len))
    # The logarithm of a query without keys is -inf.
    return tl.where(is_seen, tl.exp2(scores - lse[:, None] * 1.4426950408889634), 0.0)


@triton.jit
def attention_backward_queries_kernel(
    grad_ptr, q_ptr, k_ptr, v_ptr, lse_ptr, delta_ptr, out_ptr, q_starts, k_starts,
    q_len: tl.int64, k_len: tl.int64, head: tl.int64, group: tl.int64,
    grad_batch: tl.int64, grad_head: tl.int64, grad_row: tl.int64,
    q_batch: tl.int64, q_head: tl.int64, q_row: tl.int64,
    k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64,
    v_batch: tl.int64, v_head: tl.int64, v_row: tl.int64,
    lse_batch: tl.int64, lse_head: tl.int64,
    out_batch: tl.int64, out_head: tl.int64, out_row: tl.int64, scale,
    CAUSAL: tl.constexpr, VARLEN: tl.constexpr, HEAD: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of queries."""
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS
    mine, batch = tl.program_id(1).to(tl.int64), tl.program_id(2)
    batch, q_start, k_start, q_len, k_len = lengths(q_starts, k_starts, batch, q_len, k_len, VARLEN)
    row = first + tl.arange(0, ROWS).to(tl.int64)
    col = tl.arange(0, HEAD)
    q_ptr += batch * q_batch + mine * q_head + q_start * q_row
    grad_ptr += batch * grad_batch + mine * grad_head + q_start * grad_row
    k_ptr += batch * k_batch + mine // group * k_head + k_start * k_row
    v_ptr += batch * v_batch + mine // group * v_head + k_start * v_row
    saved = batch * lse_batch + mine * lse_head + q_start + row
    mask = row < q_len
    q = rows_at(q_ptr, row, col, q_len, q_row, head)
    grad = rows_at(grad_ptr, row, col, q_len, grad_row, head)
    lse = tl.load(lse_ptr + saved, mask=mask, other=0.0)
    delta = tl.load(delta_ptr + saved, mask=mask, other=0.0)
    total = tl.zeros((ROWS, HEAD), tl.float32)
    seen = k_len
    if CAUSAL:
        seen = tl.minimum(first + ROWS + k_len - q_len, k_len)
    scale = tl.cast(scale, tl.float32)
    for start in range(0, tl.where(first < q_len, seen, 0), KEYS):
        key = start + tl.arange(0, KEYS).to(tl.int64)
        k = rows_at(k_ptr, key, col, k_len, k_row, head)
        v = rows_at(v_ptr, key, col, k_len, v_row, head)
        weights = weights_of(q, k, row, key, lse, q_len, k_len, scale * 1.4426950408889634, CAUSAL)
        inner = tl.dot(grad, tl.trans(v), input_precision="ieee") - delta[:, None]
        total = tl.dot((weights * inner).to(k.dtype), k, total, input_precision="ieee")
    out_ptr += batch * out_batch + mine * out_head
    out_at = out_ptr + (q_start + row)[:, None] * out_row + col[None, :]
    tl.store(out_at, total * scale, mask=mask[:, None] & (col < head)[None, :])


@triton.jit
def attention_backward_keys_kernel(
    grad_ptr, q_ptr, k_ptr, v_ptr, lse_ptr, delta_ptr, out_k_ptr, out_v_ptr, q_starts, k_starts,
    q_len: tl.int64, k_len: tl.int64, head: tl.int64, group: tl.int64,
    grad_batch: tl.int64, grad_head: tl.int64, grad_row: tl.int64,
    q_batch: tl.int64, q_head: tl.int64, q_row: tl.int64,
    k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64,
    v_batch: tl.int64, v_head: tl.int64, v_row: tl.int64,
    lse_batch: tl.int64, lse_head: tl.int64,
    out_batch: tl.int64, out_head: tl.int64, out_row: tl.int64, scale,
    CAUSAL: tl.constexpr, VARLEN: tl.constexpr, HEAD: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):  # fmt: skip
    """The gradients of a block of keys and values, over all query heads that read them."""
    first = tl.program_id(0) * KEYS
    mine, batch = tl.program_id(1).to(tl.int64), tl.program_id(2)
    batch, q_start, k_start, q_len, k_len = lengths(q_starts, k_starts, batch, q_len, k_len, VARLEN)
    key = first + tl.arange(0, KEYS).to(tl.int64)
    col = tl.arange(0, HEAD)
    k = rows_at(
        k_ptr + batch * k_batch + mine * k_head + k_start * k_row, key, col, k_len, k_row, head
    )
    v = rows_at(
        v_ptr + batch * v_batch + mine * v_head + k_start * v_row, key, col, k_len, v_row, head
    )
    total_k = tl.zeros((KEYS, HEAD), tl.float32)
    total_v = tl.zeros((KEYS, HEAD), tl.float32)
    begin = tl.cast(0, tl.int64)
    if CAUSAL:
        # Queries before it see none of these keys.
        begin = tl.maximum(first - (k_len - q_len), 0) // ROWS * ROWS
    scale = tl.cast(scale, tl.float32)
    for other in range(group):
        reader = mine * group + other
        q_at = q_ptr + batch * q_batch + reader * q_head + q_start * q_row
        grad_at = grad_ptr + batch * grad_batch + reader * grad_head + q_start * grad_row
        saved = batch * lse_batch + reader * lse_head + q_start
        for start in range(tl.where(first < k_len, begin, q_len), q_len, ROWS):
            row = start + tl.arange(0, ROWS).to(tl.int64)
            q = rows_at(q_at, row, col, q_len, q_row, head)
            grad = rows_at(grad_at, row, col, q_len, grad_row, head)
            lse = tl.load(lse_ptr + saved + row, mask=row < q_len, other=0.0)
            delta = tl.load(delta_ptr + saved + row, mask=row < q_len, other=0.0)
            weights = weights_of(
                q, k, row, key, lse, q_len, k_len, scale * 1.4426950408889634, CAUSAL
            )
            turned = tl.trans(weights)
            total_v = tl.dot(turned.to(grad.dtype), grad, total_v, input_precision="ieee")
            inner = tl.dot(v, tl.trans(grad), input_precision="ieee") - delta[None, :]
            total_k = tl.dot((turned * inner).to(q.dtype), q, total_k, input_precision="ieee")
    at = batch * out_batch + mine * out_head + (k_start + key)[:, None] * out_row + col[None, :]
    mask = (key < k_len)[:, None] & (col < head)[None, :]
    tl.store(out_k_ptr + at, total_k * scale, mask=mask)
    tl.store(out_v_ptr + at, total_v, mask=mask)
