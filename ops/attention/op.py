"""softmax(q @ k.mT * scale) @ v and its gradients, of equal sequences or of packed ones."""

import torch
import triton
from torch import Tensor
from torch.nn import functional

import opforge
from opforge import native

from ..rows import FLOATS, expect_floats, expect_shape, on_hopper
from .hopper import ROWS, attend_on_hopper, fits_hopper
from .kernels import (
    attention_backward_keys_kernel,
    attention_backward_queries_kernel,
    attention_kernel,
    delta_kernel,
)


def expect_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Of (batch, heads, tokens, dim)."""
    expect_floats(q=q, k=k, v=v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise ValueError(f"{name} must have 4 dimensions, found {x.dim()}")
    if not q.dtype == k.dtype == v.dtype:
        found = f"{q.dtype}, {k.dtype} and {v.dtype}"
        raise TypeError(f"q, k and v must have the same dtype, found {found}")
    batch, heads, _, head = q.shape
    if not 0 < head <= 256:
        raise ValueError(f"heads must have 1 to 256 elements, found {head}")
    expect_shape("k", k, (batch, k.shape[1], k.shape[2], head))
    expect_shape("v", v, k.shape)
    if k.shape[1] == 0 or heads % k.shape[1] != 0:
        raise ValueError(
            f"the heads of q must be a multiple of those of k, found {heads} and {k.shape[1]}"
        )
    expect_dense(q, k, v)


def expect_dense(*tensors: Tensor) -> None:
    is_dense = True
    for x in tensors:
        # One question, so that a library has one path for yes and one for no.
        is_dense &= x.stride(-1) == 1
    if not is_dense:
        raise ValueError("the elements of a head must lie side by side: call .contiguous()")


def tiles_of(x: Tensor, *, is_backward: bool = False) -> dict[str, int]:
    """Blocks that fit into the shared memory of an sm_80."""
    head = max(triton.next_power_of_2(x.shape[-1]), 16)
    is_small = x.dtype == torch.float32 or head > 128
    rows, keys = (32, 32) if is_small else (64, 64) if is_backward or head > 64 else (128, 64)
    return {"HEAD": head, "ROWS": rows, "KEYS": keys, "num_warps": 4, "num_stages": 2}


def attend(
    q: Tensor, k: Tensor, v: Tensor, starts: tuple[Tensor, Tensor] | None, out: Tensor, lse: Tensor,
    count: int, longest: int, scale: float, causal: bool,
) -> None:  # fmt: skip
    """Of (batch, heads, tokens, dim); `count` sequences of at most `longest` queries."""
    if on_hopper(q) and fits_hopper(q, k, v):
        grid = (triton.cdiv(longest, ROWS), q.shape[1], count)
        attend_on_hopper(q, k, v, starts, out, lse, grid, scale, causal)
        return
    tiles = tiles_of(q)
    q_starts, k_starts = (lse, lse) if starts is None else starts
    attention_kernel[(triton.cdiv(longest, tiles["ROWS"]), q.shape[1], count)](
        q, k, v, out, lse, q_starts, k_starts, q.shape[2], k.shape[2], q.shape[3],
        q.shape[1] // k.shape[1], *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        *out.stride()[:3], *lse.stride()[:2], scale, CAUSAL=causal, VARLEN=starts is not None,
        **tiles,
    )  # fmt: skip


def attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, starts: tuple[Tensor, Tensor] | None,
    out: Tensor, lse: Tensor, made: tuple[Tensor, Tensor, Tensor],
    strides: tuple[tuple[int, ...], tuple[int, ...]], count: int, longest: tuple[int, int],
    scale: float, causal: bool,
) -> None:  # fmt: skip
    """The gradients of q, k and v into `made`, with the strides of batch, head and token.

    `strides` are those of q's gradient, and of the other two.
    """
    tiles = tiles_of(q, is_backward=True)
    group = q.shape[1] // k.shape[1]
    delta = torch.empty(lse.shape, dtype=torch.float32, device=q.device)
    delta_kernel[(triton.cdiv(q.shape[2], 64), q.shape[1], q.shape[0])](
        grad, out, delta, q.shape[2], q.shape[3], *grad.stride()[:3], *out.stride()[:3],
        *delta.stride()[:2], HEAD=tiles["HEAD"], ROWS=64,
    )  # fmt: skip
    q_starts, k_starts = (lse, lse) if starts is None else starts
    given = (grad, q, k, v, lse, delta)
    sizes = (
        q.shape[2], k.shape[2], q.shape[3], group, *grad.stride()[:3], *q.stride()[:3],
        *k.stride()[:3], *v.stride()[:3], *lse.stride()[:2],
    )  # fmt: skip
    named = {"CAUSAL": causal, "VARLEN": starts is not None, **tiles}
    attention_backward_queries_kernel[(triton.cdiv(longest[0], tiles["ROWS"]), q.shape[1], count)](
        *given, made[0], q_starts, k_starts, *sizes, *strides[0], scale, **named
    )
    attention_backward_keys_kernel[(triton.cdiv(longest[1], tiles["KEYS"]), k.shape[1], count)](
        *given, *made[1:], q_starts, k_starts, *sizes, *strides[1], scale, **named
    )


def empty_like(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def zeros_like(x: Tensor) -> Tensor:
    """For tokens of no sequence, which no kernel writes."""
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device)


@opforge.op("ops::attention_backward")
def attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    causal: bool = False, scale: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k and v, given that of out, and what attention returned."""
    expect_heads(q, k, v)
    expect_shape("grad", grad, q.shape)
    expect_shape("out", out, q.shape)
    expect_shape("lse", lse, q.shape[:3])
    expect_dense(grad, out, lse)
    made = empty_like(q), empty_like(k), empty_like(v)
    strides = made[0].stride()[:3], made[1].stride()[:3]
    longest = q.shape[2], k.shape[2]
    attend_backward(
        grad, q, k, v, None, out, lse, made, strides, q.shape[0], longest, scale, causal
    )
    return made


def save(ctx, inputs, output):
    q, k, v, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.mark_non_differentiable(output[1])


def backward(ctx, grad, _):
    # The gradient of a sum is one number for all elements.
    grad = grad.contiguous()
    return (*attention_backward(grad, *ctx.saved_tensors, ctx.causal, ctx.scale), None, None)


@opforge.op("ops::attention", mode="custom_op", backward=backward, setup_context=save)
def attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """softmax(q @ k.mT * scale) @ v, and the logarithm of each query's sum of exponentials.

    Tensors are (batch, heads, tokens, dim); several heads of q may share one of k and v. With
    `causal` the last query sees all keys, and each query before it one less. Heads are dense.
    """
    expect_heads(q, k, v)
    out = empty_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    if q.numel() > 0:
        attend(q, k, v, None, out, lse, q.shape[0], q.shape[2], scale, causal)
    return out, lse


def packed(*tensors: Tensor) -> list[Tensor]:
    """(tokens, heads, dim) as one batch of (heads, tokens, dim)."""
    return [x.transpose(0, 1).unsqueeze(0) for x in tensors]


def expect_packed(
    q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor
) -> tuple[list[Tensor], tuple[Tensor, Tensor], int]:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 3:
            raise ValueError(f"{name} must have 3 dimensions, found {x.dim()}")
    for name, starts in (("q_starts", q_starts), ("k_starts", k_starts)):
        if starts.dtype != torch.int32 or starts.dim() != 1:
            found = f"{starts.dtype} of {starts.dim()} dimensions"
            raise TypeError(f"{name} must be int32 of 1 dimension, found {found}")
    expect_shape("k_starts", k_starts, q_starts.shape)
    whole = packed(q, k, v)
    expect_heads(*whole)
    return whole, (q_starts.contiguous(), k_starts.contiguous()), q_starts.shape[0] - 1


@opforge.op("ops::attention_varlen_backward")
def attention_varlen_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    q_starts: Tensor, k_starts: Tensor, q_longest: int, k_longest: int,
    causal: bool = False, scale: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k and v, given that of out, and what attention_varlen returned."""
    whole, starts, count = expect_packed(q, k, v, q_starts, k_starts)
    expect_shape("grad", grad, q.shape)
    expect_shape("out", out, q.shape)
    expect_shape("lse", lse, (q.shape[1], q.shape[0]))
    expect_dense(grad, out, lse)
    made = zeros_like(q), zeros_like(k), zeros_like(v)
    grad, out = packed(grad, out)
    # Inductor merges equal zeros, and fails where kernels write to views of what it has merged.
    strides = tuple((0, x.stride(1), x.stride(0)) for x in made[:2])
    attend_backward(
        grad, *whole, starts, out, lse.unsqueeze(0), made, (strides[0], strides[1]), count,
        (q_longest, k_longest), scale, causal,
    )  # fmt: skip
    return made


def save_varlen(ctx, inputs, output):
    q, k, v, q_starts, k_starts, *ctx.rest = inputs
    ctx.save_for_backward(q, k, v, *output, q_starts, k_starts)
    ctx.mark_non_differentiable(output[1])


def backward_varlen(ctx, grad, _):
    grad = grad.contiguous()
    return (*attention_varlen_backward(grad, *ctx.saved_tensors, *ctx.rest), *(None,) * 6)


@opforge.op(
    "ops::attention_varlen", mode="custom_op", backward=backward_varlen, setup_context=save_varlen
)
def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor,
    q_longest: int, k_longest: int,  # noqa: ARG001  # the gradient needs it
    causal: bool = False, scale: float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """attention of sequences that lie one behind the other, as (tokens, heads, dim).

    Sequence i has the queries from q_starts[i] to q_starts[i + 1], of which there are at most
    q_longest; nothing checks that. Tokens of no sequence give zeros. k_longest is for the gradient.
    """
    whole, starts, count = expect_packed(q, k, v, q_starts, k_starts)
    out = zeros_like(q)
    lse = torch.zeros((q.shape[1], q.shape[0]), dtype=torch.float32, device=q.device)
    if q.numel() > 0:
        into = packed(out)[0]
        attend(*whole, starts, into, lse.unsqueeze(0), count, q_longest, scale, causal)
    return out, lse


def of_heads(shape: str, layout: str):
    """q, k and v of a native call."""
    q, k = shape.format("heads", "tokens"), shape.format("shared", "keys")
    shapes = {"q": q, "k": k, "v": k}
    return {n: native.tensor(s, dtype="T", layout=layout) for n, s in shapes.items()}


EQUAL, PACKED = "batch {0} {1} head", "{1} {0} head"
starts = {n: native.tensor("starts", dtype="i32") for n in ("q_starts", "k_starts")}
longest = {n: native.scalar("i32") for n in ("q_longest", "k_longest")}
last = {"causal": native.choice(False, True), "scale": native.scalar("fp32")}
given = {**last, "dims": {"head": [64, 128], "shared": (1, 1 << 16)}, "T": FLOATS}
native.declare(attention, **of_heads(EQUAL, "strided"), **given)
native.declare(attention_varlen, **of_heads(PACKED, "strided"), **starts, **longest, **given)
for op, shape, lse, more in (
    (attention_backward, EQUAL, "batch heads tokens", {}),
    (attention_varlen_backward, PACKED, "heads tokens", {**starts, **longest}),
):
    tensors = of_heads(shape, "contiguous")
    native.declare(
        op, grad=tensors["q"], **tensors, out=tensors["q"], lse=native.tensor(lse, dtype="fp32"),
        **more, **given,
    )  # fmt: skip


def attention_reference(q, k, v, causal=False, scale=1.0):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q.float() @ k.float().mT * scale
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
        scores = scores.masked_fill(~seen.tril(k.shape[2] - q.shape[2]), -torch.inf)
    weights = functional.softmax(scores, -1).nan_to_num()
    return (weights @ v.float()).to(q.dtype), scores.logsumexp(-1)


def attention_backward_reference(grad, q, k, v, out, lse, causal=False, scale=1.0):  # noqa: ARG001
    given = [x.detach().requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        return torch.autograd.grad(attention_reference(*given, causal, scale)[0], given, grad)


def each(reference, q_starts, k_starts, q, k, *more):
    """A reference for (batch, heads, tokens, dim) on each of some packed sequences."""
    spans = [list(zip(s[:-1].tolist(), s[1:].tolist(), strict=True)) for s in (q_starts, k_starts)]
    for (q0, q1), (k0, k1) in zip(*spans, strict=True):
        yield reference(packed(q[q0:q1])[0], *packed(k[k0:k1], *(x[k0:k1] for x in more)))


def attention_varlen_reference(
    q, k, v, q_starts, k_starts, q_longest, k_longest, causal=False, scale=1.0  # noqa: ARG001
):  # fmt: skip
    found = list(each(lambda *given: attention_reference(*given, causal, scale),
                      q_starts, k_starts, q, k, v))  # fmt: skip
    outs, lses = zip(*found, strict=True)
    return torch.cat([x[0].transpose(0, 1) for x in outs]), torch.cat([x[0] for x in lses], 1)


def attention_varlen_backward_reference(
    grad, q, k, v, out, lse, q_starts, k_starts, q_longest, k_longest, causal=False, scale=1.0  # noqa: ARG001
):  # fmt: skip
    given = [x.detach().requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        made = attention_varlen_reference(
            *given, q_starts, k_starts, q_longest, k_longest, causal, scale
        )
        return torch.autograd.grad(made[0], given, grad)


def attention_inputs():
    return (torch.randn(1, 2, 20, 64), *torch.randn(2, 1, 1, 20, 64), True, 0.125), {}


def attention_backward_inputs():
    (q, k, v, *rest), _ = attention_inputs()
    return (torch.randn_like(q), q, k, v, *attention_reference(q, k, v, *rest), *rest), {}


def attention_varlen_inputs():
    starts = torch.tensor([0, 3, 20], dtype=torch.int32)
    q, (k, v) = torch.randn(20, 2, 64), torch.randn(2, 20, 1, 64)
    return (q, k, v, starts, starts, 17, 17, True, 0.125), {}


def attention_varlen_backward_inputs():
    (q, k, v, *rest), _ = attention_varlen_inputs()
    return (torch.randn_like(q), q, k, v, *attention_varlen_reference(q, k, v, *rest), *rest), {}
