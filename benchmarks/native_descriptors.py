"""What tensor descriptors (TMA) add to a call of a native library, in microseconds of host time.

    python benchmarks/native_descriptors.py     # needs a GPU of sm_90 or later, and a C compiler

Two operators copy a matrix, one with pointers and one with two descriptors. Calls take turns; each
time is the least of many rounds, while the GPU has other work. The tensors are the same in every
call, or others in each, so that every call encodes two tensor maps.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import torch
import triton
import triton.language as tl
from ratios import Row, measure
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

import opforge
from opforge import native

ROUNDS, CALLS, LIMIT = 50, 200, 0.3
M, N = 64, 64


@triton.jit
def pointed_kernel(x, out, m, n, M: tl.constexpr, N: tl.constexpr):  # noqa: ANN001, ANN201  # Triton reads them
    i = tl.program_id(0) * M + tl.arange(0, M)[:, None]
    j = tl.program_id(1) * N + tl.arange(0, N)[None, :]
    inside = (i < m) & (j < n)
    tl.store(out + i * n + j, tl.load(x + i * n + j, mask=inside), mask=inside)


@triton.jit
def described_kernel(x, out, M: tl.constexpr, N: tl.constexpr):  # noqa: ANN001, ANN201  # Triton reads them
    i, j = tl.program_id(0) * M, tl.program_id(1) * N
    out.store([i, j], x.load([i, j]))


@opforge.op("descriptors::pointed")
def pointed(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    m, n = x.shape
    pointed_kernel[triton.cdiv(m, M), triton.cdiv(n, N)](x, out, m, n, M=M, N=N)
    return out


@opforge.op("descriptors::described")
def described(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    given, made = (TensorDescriptor.from_tensor(t, [M, N]) for t in (x, out))
    described_kernel[triton.cdiv(x.shape[0], M), triton.cdiv(x.shape[1], N)](given, made, M=M, N=N)
    return out


def build(folder: Path) -> None:
    for op in (pointed, described):
        native.declare(op, x=native.tensor("m n", dtype="fp16"))
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    native.build([pointed, described], folder, name="descriptors", archs=[arch], torch=True)
    opforge.load(folder)


def least(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The host time of each call in microseconds."""
    found = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _turn in range(CALLS):
                call()
            spent = (time.perf_counter() - start) / CALLS * 1e6
            found[name] = min(found[name], spent)
    return found


def added(_: Path) -> list[Row]:
    same = torch.randn(256, 256, device="cuda").half()
    # More than a thread keeps.
    others = itertools.cycle([torch.randn(256, 256, device="cuda").half() for _ in range(64)])
    ops = torch.ops.descriptors
    rows = []
    with opforge.backend("native"), torch.inference_mode():
        for what, x in (("the same tensors", itertools.repeat(same)), ("other tensors", others)):
            times = least({
                "pointers": lambda x=x: ops.pointed(next(x)),
                "descriptors": lambda x=x: ops.described(next(x)),
            })  # fmt: skip
            more = times["descriptors"] - times["pointers"]
            detail = f"{times['descriptors']:.2f} - {times['pointers']:.2f} us"
            limit = LIMIT if x is not others else None
            rows.append(Row(f"us that two descriptors add, {what}", more, limit, detail))
    return rows


if __name__ == "__main__":
    assert __doc__ is not None
    measure(__doc__, build, [added])
