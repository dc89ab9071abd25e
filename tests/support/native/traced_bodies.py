"""Host functions as people write them, one per habit, with their declarations."""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

import opforge
from opforge import native
from support.native.traced_kernels import (
    annotated,
    block,
    indexed,
    rows,
    strided,
    take,
    tuned_and_guided,
    unspecialized,
    wrapped,
)
from support.native.traced_oracle import Body

T = native.tensor
TABLE: dict[str, Body] = {}


def body(mutates=(), eager=None, **specs):
    """Put a function into the table."""

    def put(fn):
        TABLE[fn.__name__] = Body(fn, specs, tuple(mutates), eager=eager)
        return fn

    return put


# Grids and block sizes.


@body(x=T("...", dtype=("fp16", "bool"), ranks=(1, 3)))
def grid_lambda(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    block[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n, BLOCK=1024)
    return out


@body(x=T("m n", dtype="fp32"), dims={"n": (1, 5000)})
def bucketed(x: Tensor) -> Tensor:
    m, n = x.shape
    out = torch.empty_like(x)
    size = triton.next_power_of_2(n)
    rows[(m,)](x, out, x.stride(0), out.stride(0), n, size, num_warps=4 if size < 2048 else 8)
    return out


@body(x=T("m n", dtype="fp32"))
def bucketed_with_a_floor(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    size = max(16, min(64, triton.next_power_of_2(x.shape[0])))
    rows[(triton.cdiv(x.shape[0], size),)](x, out, 1, 1, 1, BLOCK=size)
    return out


# Questions about tensors.


@body(x=T("m n", dtype="fp16"), bias=native.optional(T("n", dtype="fp16")))
def asks_none(x: Tensor, bias: Tensor | None) -> Tensor:
    out = torch.empty_like(x)
    take[(x.shape[0],)](x, out, bias, None if bias is None else bias.stride(0), A=bias is not None)
    return out


@body(x=T("m n", dtype="fp32"))
def asks_sizes(x: Tensor) -> Tensor:
    m, n = x.shape
    out = torch.empty_like(x)
    if n <= 1024:
        rows[(m,)](x, out, n, n, n, BLOCK=1024)
    elif n % 128 == 0 and m > 4:
        rows[(m, n // 128)](x, out, n, n, n, BLOCK=128, num_stages=3)
    else:
        take[(m,)](x, out, n)
    return out


@body(x=T("m n", dtype="fp32"), w=T("k", dtype="fp32"))
def asserts(x: Tensor, w: Tensor) -> Tensor:
    assert x.shape[1] == w.shape[0], "x and w do not fit"
    if x.shape[0] > 65535:
        raise ValueError(f"too many rows: {x.shape[0]}")
    out = torch.empty_like(x)
    take[(x.shape[0],)](x, out, w)
    return out


# Branches, loops, several launches.


@body(x=T("m n", dtype="fp32"), dims={"m": (0, 4)})
def loops_over_a_size(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        block[(triton.cdiv(x.shape[1], 64),)](x[i], out[i], x.shape[1], BLOCK=64)
    return out


@body(x=T("m n", dtype="fp32"), causal=native.choice(False, True), kind=native.choice("a", "b"))
def launches_in_branches(x: Tensor, causal: bool, kind: str) -> tuple[Tensor, Tensor]:
    m, n = x.shape
    out, sums = torch.empty_like(x), x.new_empty(m, dtype=torch.float32)
    if m and n:
        take[(m,)](x, out, n, A=causal, B=kind)
        if causal:
            take[(n,)](out, sums, m)
    return out, sums


# Arguments of launches.


@body(x=T("n", dtype="fp32"))
def options_in_a_dict(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    n = x.shape[0]
    options: dict[str, Any] = {"num_warps": 8 if n > 999 else 2, "num_stages": 2, "BLOCK": 64}
    if n % 2:
        options["maxnreg"] = 128
    block[(n,)](x, out, n=n, **options)
    return out


@body(x=T("n", dtype="fp32"))
def runs_directly(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    block.run(x, out, x.shape[0], BLOCK=64, grid=(x.shape[0],), warmup=False)
    return out


@body(x=T("n", dtype="fp32"))
def through_wrappers(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    wrapped[lambda meta: (triton.cdiv(x.shape[0], meta["BM"]),)](x, out, x.shape[0])
    indexed[(3,)](x, out, 3, BLOCK=64)
    return out


@body(x=T("n", dtype="fp32"))
def guided_inside_tuned(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    tuned_and_guided[lambda meta: (triton.cdiv(x.shape[0], meta["BM"]),)](x, out, x.shape[0])
    return out


@body(x=T("m n", dtype="fp16"))
def constants_of_all_kinds(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    take[(1,)](x, out, 1, True, None, 2.5, A=tl.float32, B=(1, "a", None))
    take[(1,)](x, out, 0, 16, 17, 2**40, A=torch.float16, B=LIMIT)
    take[(1,)](x, out, -1, -16, float("inf"), 1.0, A="text", B=tl.constexpr(5))
    return out


LIMIT = tl.constexpr(77)


@body(x=T("m n", dtype="fp16"), dims={"m": (0, 2**31 - 1)})
def annotated_parameters(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    m, n = x.shape
    annotated[(1,)](x, out, n, 0.5, m, True)
    annotated[(1,)](x, out, 1, 1, 1, False)
    annotated[(1,)](x, out, 32, 1, 32, n > 5)
    return out


@body(x=T("m n", dtype="fp16"))
def parameters_not_specialized(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    m, n = x.shape
    unspecialized[(1,)](x, out, n, n, n)
    unspecialized[(1,)](x, out, 1, 1, 1)
    unspecialized[(1,)](x, out, 32, 32, 32 * m)
    return out


@body(
    x=T("n", dtype="fp32"),
    alpha=native.scalar("fp32"),
    beta=native.scalar("fp64"),
    k=native.scalar("i32"),
    wide=native.scalar("i64"),
    dims={"k": (-100, 100)},
)
def scalars(x: Tensor, alpha: float, beta: float, k: int, wide: int) -> Tensor:
    out = torch.empty_like(x)
    take[(1,)](x, out, alpha * 2, k + 1, beta / 3, -wide)
    if alpha > 0.5:
        take[(1,)](x, out, k // 7, k % 7, max(k, 3), min(k * 2, wide))
    elif alpha == 0.0:
        take[(1,)](x, out, abs(k), alpha, k * 1.0, k)
    if k < 0:
        take[(1,)](x, out, k == -1, wide > k)
    return out


# Memory.


@body(x=T("m n", dtype="fp16"))
def workspace(x: Tensor) -> Tensor:
    m, n = x.shape
    out = torch.empty_like(x)
    partial = torch.empty((m, triton.cdiv(n, 64)), device=x.device, dtype=torch.float32)
    locks = torch.zeros(m, device="cuda", dtype=torch.int32)
    lowest = torch.full((n, 2), float("-inf"), device=x.device)
    counts = x.new_ones(3, dtype=torch.int64)
    scalar = torch.empty((), device=x.device, dtype=torch.float32)
    take[(m,)](x, partial, locks, lowest, counts, scalar)
    locks.zero_()
    lowest.fill_(2.5)
    out.fill_(7)
    take[(m,)](partial, out, locks, lowest)
    return out


@body(mutates=["out"], x=T("m n", dtype="fp16"), out=T("m n", dtype="fp32", layout="strided"))
def out_parameter(x: Tensor, out: Tensor) -> None:
    strided[(x.shape[0],)](x, out, *x.stride(), *out.stride(), *x.shape, BLOCK=16)


@body(x=T("m n", dtype="fp16"), dims={"n": (2, None)})
def views(x: Tensor) -> Tensor:
    m, n = x.shape
    out = torch.empty((m, n // 2), device=x.device, dtype=x.dtype)
    left, right = x[:, : n // 2], x[:, n // 2 :]
    take[(m,)](left, out, right, x.t(), x.view(-1)[3:], x[None].expand(4, m, n), A=n % 2)
    take[(1,)](x.unsqueeze(0).squeeze(0), out.view(-1), x.reshape(-1), x.flatten(), x.permute(1, 0))
    return out


@body(x=T("b s h", dtype="fp16", layout="strided"))
def reshapes_strided(x: Tensor) -> Tensor:
    out = torch.empty(x.shape, device=x.device, dtype=x.dtype)
    flat = x.view(-1, x.shape[-1]) if x.numel() else x
    take[(x.shape[0],)](flat, out, flat.stride(0), x.stride(2))
    return out


# Arithmetic on sizes.


@body(x=T("m n", dtype="fp16"), dims={"m": (0, 2**20), "n": (1, 2**20)})
def arithmetic(x: Tensor) -> Tensor:
    m, n = x.shape
    out = torch.empty_like(x)
    take[(math.ceil(n / 128),)](x, out, x.numel() // n, 1 / math.sqrt(n), n**-0.5, n * n)
    take[(n * 2 // 3 + 1,)](x, out, math.floor(n / 7), round(n / 4), math.log2(n), m**3)
    take[(n >> 2 or 1,)](x, out, n << 3, n & 15, -(-m // 8), n % 10)
    take[(math.prod(x.shape[:-1]),)](x, out, sum(x.shape), len(x.shape), (m + 15) // 16 * 16, m | 1)
    return out


@body(x=T("m n", dtype="fp32"), dims={"n": (1, 2**40)})
def wide_integers(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    n = x.shape[1]
    wide = x.numel() >= 2**31
    take[(triton.cdiv(n, 2**20),)](x, out, n, n * 8, n + 2**31, A=wide)
    return out


# The device.


@body(x=T("n", dtype="fp32"))
def contexts(x: Tensor) -> Tensor:
    with torch.cuda.device(x.device):
        out = torch.empty_like(x)
        with torch.cuda.device_of(x), torch.cuda.device(x.device.index):
            block[(x.shape[0],)](x, out, x.shape[0], BLOCK=64)
    assert x.is_cuda
    assert x.device == out.device
    assert x.device.type == "cuda"
    return out


# Operators in operators.


def _inner(x: Tensor, k: int = 3) -> Tensor:
    out = torch.empty_like(x)
    take[(x.shape[0],)](x, out, k)
    return out


inner_op = opforge.op(_inner, name="tables::inner")


def _outer_eagerly(x):
    return _inner(_inner(x, 4))


@body(eager=_outer_eagerly, x=T("n", dtype="fp32"))
def nested(x: Tensor) -> Tensor:
    return inner_op(inner_op(x, 4))


@torch.library.triton_op("tables::transparent", mutates_args=())
def transparent(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(take)[(x.shape[0],)](x, out, 3)
    return out


@body(eager=_inner, x=T("n", dtype="fp32"))
def nested_triton_op(x: Tensor) -> Tensor:
    return transparent(x)
