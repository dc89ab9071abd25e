"""In-place rotary position embedding of queries and keys."""

import torch
import triton
import triton.language as tl
from torch import Tensor

import opforge
from opforge import native


@triton.jit
def rotated(first, second, cos, sin):
    """Pairs rotated by an angle, in at least single precision."""
    if first.dtype.primitive_bitwidth < 32:
        first, second = first.to(tl.float32), second.to(tl.float32)
    if cos.dtype.primitive_bitwidth < 32:
        cos, sin = cos.to(tl.float32), sin.to(tl.float32)
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def rotate_heads(
    token_ptr, block, heads, head_stride, half, cos, sin,
    INTERLEAVED: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """A block of heads of one token; all of them are rotated by the same angles."""
    head = block * HEADS + tl.arange(0, HEADS)[:, None]
    rows = token_ptr + head * head_stride
    if INTERLEAVED:
        # Loaded as it is and then split: loading every other element would waste half the access.
        col = tl.arange(0, 2 * HALF)[None, :]
        mask = (head < heads) & (col < 2 * half)
        pairs = tl.reshape(tl.load(rows + col, mask=mask), (HEADS, HALF, 2))
        first, second = tl.split(pairs)
        first, second = rotated(first, second, cos, sin)
        tl.store(rows + col, tl.reshape(tl.join(first, second), (HEADS, 2 * HALF)), mask=mask)
    else:
        col = tl.arange(0, HALF)[None, :]
        mask = (head < heads) & (col < half)
        first = tl.load(rows + col, mask=mask)
        second = tl.load(rows + half + col, mask=mask)
        first, second = rotated(first, second, cos, sin)
        tl.store(rows + col, first, mask=mask)
        tl.store(rows + half + col, second, mask=mask)


# An int64 argument is specialized for multiples of 16, and for nothing else.
@triton.jit(do_not_specialize=["length", "q_heads", "k_heads", "q_blocks", "k_blocks"])
def rotary_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, positions_ptr,
    length: tl.int64, q_heads: tl.int64, k_heads: tl.int64, half: tl.int64,
    q_batch: tl.int64, q_token: tl.int64, q_head: tl.int64,
    k_batch: tl.int64, k_token: tl.int64, k_head: tl.int64,
    q_blocks: tl.int64, k_blocks: tl.int64,
    INTERLEAVED: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    token = program // (q_blocks + k_blocks)
    block = program % (q_blocks + k_blocks)
    batch, at = token // length, token % length
    position = at
    if positions_ptr is not None:
        position = tl.load(positions_ptr + token).to(tl.int64)
    pair = tl.arange(0, HALF)[None, :]
    cos = tl.load(cos_ptr + position * half + pair, mask=pair < half)
    sin = tl.load(sin_ptr + position * half + pair, mask=pair < half)
    if block < q_blocks:
        rotate_heads(
            q_ptr + batch * q_batch + at * q_token, block, q_heads, q_head, half, cos, sin,
            INTERLEAVED, HEADS, HALF,
        )  # fmt: skip
    else:
        rotate_heads(
            k_ptr + batch * k_batch + at * k_token, block - q_blocks, k_heads, k_head, half,
            cos, sin, INTERLEAVED, HEADS, HALF,
        )  # fmt: skip


@opforge.op("ops::rotary", mutates_args=("q", "k"))
def rotary(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    interleaved: bool = False,
) -> None:
    """Rotate pairs of elements of q and k by the angles of their token's position, in place.

    q and k are (tokens, heads, dim) or (batch, tokens, heads, dim) and may have different numbers
    of heads. cos and sin are (table, half), and the first 2 * half elements of a head are rotated:
    (i, i + half) are a pair, or (2 * i, 2 * i + 1) if interleaved. Positions choose each token's
    row in the tables and are not checked; without them, a token's row is its index.
    """
    _check(q, k, cos, sin, positions)
    rank, half = q.dim(), cos.shape[1]
    length = q.shape[-3]
    # The stride of a batch of one is never used; reusing another avoids further kernels.
    q_strides = q.stride()[:3] if rank == 4 else (q.stride(0), *q.stride()[:2])
    k_strides = k.stride()[:3] if rank == 4 else (k.stride(0), *k.stride()[:2])
    block = triton.next_power_of_2(max(half, 32))
    # Eight pairs per thread: half precision is then read 16 bytes at a time.
    heads = 1024 // block
    q_blocks, k_blocks = triton.cdiv(q.shape[-2], heads), triton.cdiv(k.shape[-2], heads)
    tokens = length * q.shape[0] if rank == 4 else length
    rotary_kernel[(tokens * (q_blocks + k_blocks),)](
        q, k, cos.contiguous(), sin.contiguous(),
        None if positions is None else positions.contiguous(),
        length, q.shape[-2], k.shape[-2], half, *q_strides, *k_strides, q_blocks, k_blocks,
        INTERLEAVED=interleaved, HEADS=heads, HALF=block,
    )  # fmt: skip


_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


def _check(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None) -> None:
    if q.dim() not in {3, 4} or k.dim() != q.dim() or cos.dim() != 2 or sin.dim() != 2:
        raise ValueError(
            f"q and k must have 3 or 4 dimensions, cos and sin 2; found {q.dim()}, {k.dim()}, "
            f"{cos.dim()} and {sin.dim()}"
        )
    if q.dtype != k.dtype or cos.dtype != sin.dtype:
        raise TypeError(
            f"q and k must have the same dtype, and so must cos and sin; found {q.dtype} and "
            f"{k.dtype}, {cos.dtype} and {sin.dtype}"
        )
    if q.dtype not in _FLOATS or cos.dtype not in _FLOATS:
        raise TypeError(
            f"q, k, cos and sin must be fp16, bf16, fp32 or fp64; found {q.dtype} and {cos.dtype}"
        )
    if positions is not None and positions.dtype not in {torch.int32, torch.int64}:
        raise TypeError(f"positions must be i32 or i64; found {positions.dtype}")
    tokens = q.shape[:-2]
    if k.shape[:-2] != tokens or k.shape[-1] != q.shape[-1] or cos.shape != sin.shape:
        raise ValueError(
            "q and k must have the same shape except for heads, cos and sin the same; found "
            f"{tuple(q.shape)} and {tuple(k.shape)}, {tuple(cos.shape)} and {tuple(sin.shape)}"
        )
    if positions is not None and positions.shape != tokens:
        raise ValueError(
            f"positions must have the shape of the tokens, {tuple(tokens)}; "
            f"found {tuple(positions.shape)}"
        )
    if q.stride(-1) != 1 or k.stride(-1) != 1:
        raise ValueError("the last dimension of q and k must have a stride of 1")
    if 2 * cos.shape[1] > q.shape[-1]:
        raise ValueError(f"{cos.shape[1]} pairs do not fit into heads of {q.shape[-1]} elements")
    if positions is None and q.shape[-3] > cos.shape[0]:
        raise ValueError(
            f"cos and sin must have a row per token; found {cos.shape[0]} rows for "
            f"{q.shape[-3]} tokens"
        )


def _declare(T, C):
    native.declare(
        rotary,
        q=native.tensor("*t q_heads dim", dtype="T", layout="strided", ranks=(3, 4)),
        k=native.tensor("*t k_heads dim", dtype="T", layout="strided"),
        cos=native.tensor("table half", dtype="C"),
        sin=native.tensor("table half", dtype="C"),
        positions=native.optional(native.tensor("*t", dtype="i64")),
        interleaved=native.scalar("bool"),
        dims={"half": (1, 128)},
        T=T,
        C=C,
    )


_declare(("fp16", "bf16", "fp32"), "fp32")
_declare("fp16", "fp16")
_declare("bf16", "bf16")


def both_rotated(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    interleaved: bool = False,
) -> tuple[Tensor, Tensor]:
    """The rotated q and k, which the operator itself computes in place."""
    if positions is None:
        positions = torch.arange(q.shape[-3], device=q.device).expand(q.shape[:-2])
    half = cos.shape[1]
    cos, sin = cos[positions].unsqueeze(-2), sin[positions].unsqueeze(-2)
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    found = []
    for x in (q, k):
        out = x.clone()
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., second] * cos + x[..., first] * sin
        found.append(out)
    return found[0], found[1]


def rotary_reference(q, k, *rest):
    for x, result in zip((q, k), both_rotated(q, k, *rest), strict=True):
        x.copy_(result)


def rotary_inputs():
    q, k = torch.randn(3, 4, 64), torch.randn(3, 2, 64)
    return (q, k, torch.randn(3, 32), torch.randn(3, 32)), {}
