"""torch calls that a native library makes itself, against torch and torch.compile.

    python benchmarks/native_torch.py     # needs a GPU and a C compiler

Tensors are 4096 x 4096, fp16 where nothing else is said. GPU times are medians of rounds in which
both sides take turns, the L2 cache filled with other memory before each call. The last row is host
time: of a body with three torch calls and one launch, while the GPU has other work.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from ratios import Row, measure
from torch import Tensor

import opforge
from opforge import native

SIZE, ROUNDS, WARM = 4096, 60, 5
HALF = {"x": native.tensor("m n", dtype="fp16")}
FULL = {"x": native.tensor("m n", dtype="fp32")}
PAIR = {"x": native.tensor("m n", dtype="fp16"), "y": native.tensor("m n", dtype="fp16")}


def chain(x: Tensor) -> Tensor:
    return torch.relu(x * 2 + 1.5) * x - 0.5


def curved_chain(x: Tensor) -> Tensor:
    """Bound by arithmetic: unlike Inductor's, the library's functions have torch's bits."""
    return torch.tanh(torch.sigmoid(x * 2 + 1.5) * x)


@triton.jit
def twice_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201  # Triton reads them
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


def mixed(x: Tensor) -> Tensor:
    y = (x - 1).contiguous()
    out = torch.empty_like(y)
    twice_kernel[(triton.cdiv(y.numel(), 1024),)](y, out, y.numel(), BLOCK=1024)
    return out.amax(-1) * 0.5


# By name: the function, its declaration, and the limit of its GPU time over torch's.
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any], float | None]] = {
    "clone": (lambda x: x.clone(), HALF, 1.1),
    "transposed": (lambda x: x.t().contiguous(), HALF, 1.1),
    "to_float": (lambda x: x.float(), HALF, 1.1),
    "to_half": (lambda x: x.half(), FULL, 1.1),
    "exp": (torch.exp, HALF, 1.1),
    "exp_fp32": (torch.exp, FULL, 1.1),
    "silu": (torch.nn.functional.silu, HALF, 1.1),
    "add": (torch.add, PAIR, 1.1),
    "add_row": (lambda x: x + x[0], HALF, 1.1),
    "where": (lambda x: torch.where(x > 0, x, 0.5), HALF, 1.1),
    "sum": (lambda x: x.sum(), HALF, 1.1),
    "sum_rows": (lambda x: x.sum(-1), HALF, 1.1),
    "sum_columns": (lambda x: x.sum(0), HALF, 1.1),
    "mean_fp32": (lambda x: x.mean(-1), FULL, 1.1),
    "amax": (lambda x: x.amax(-1), HALF, 1.1),
    "argmax": (lambda x: x.argmax(-1), HALF, 1.1),
    "softmax": (lambda x: x.softmax(-1), HALF, 1.1),
    "logsumexp": (lambda x: x.logsumexp(-1), HALF, 1.1),
    "var_mean": (lambda x: torch.var_mean(x, -1), HALF, 1.1),
    "cumsum": (lambda x: x.cumsum(-1), HALF, 1.1),
    "cat": (lambda x, y: torch.cat([x, y], 1), PAIR, 1.1),
    "repeat": (lambda x: x.repeat(2, 1), HALF, 1.1),
    "flip": (lambda x: x.flip(-1), HALF, 1.1),
    "tril": (torch.tril, HALF, 1.1),
    "mm": (torch.mm, PAIR, None),
}


CHAINS = (chain, curved_chain)


def declared(name: str, function: Callable[..., Any], specs: dict[str, Any]) -> Any:
    names = list(specs)
    returns = tuple[Tensor, Tensor] if name == "var_mean" else Tensor
    if len(names) == 1:

        def body(x: Tensor) -> Any:
            return function(x)
    else:

        def body(x: Tensor, y: Tensor) -> Any:
            return function(x, y)

    body.__annotations__["return"] = returns
    made = opforge.op(body, name=f"native_torch::{name}")
    native.declare(made, **specs)
    return made


def build(folder: Path) -> None:
    more = {function.__name__: (function, HALF, None) for function in (*CHAINS, mixed)}
    bodies = {**CALLS, **more}
    made = [declared(name, function, specs) for name, (function, specs, _) in bodies.items()]
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    native.build(made, folder / "dist", name="native_torch", archs=[arch], torch=True)
    opforge.load(folder / "dist")


def inputs(specs: dict[str, Any]) -> list[Tensor]:
    dtypes = {"fp16": torch.float16, "fp32": torch.float32}
    return [
        torch.randn(SIZE, SIZE, device="cuda").to(dtypes[spec.dtype]) for spec in specs.values()
    ]


def gpu_times(*calls: Callable[[], Any]) -> list[float]:
    """The median time of each call in microseconds."""
    flush = torch.empty(256 * 2**20, dtype=torch.uint8, device="cuda")
    found: list[list[float]] = [[] for _ in calls]
    for turn in range(WARM + ROUNDS):
        for times, call in zip(found, calls, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.zero_()
            # Keeps the GPU busy until the host has launched.
            torch.cuda._sleep(1_000_000)  # noqa: SLF001  # torch's own tests use it
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            if turn >= WARM:
                times.append(start.elapsed_time(end) * 1e3)
    return [statistics.median(times) for times in found]


def each_call(_: Path) -> list[Row]:
    rows = []
    for name, (function, specs, limit) in CALLS.items():
        given = inputs(specs)
        op = getattr(torch.ops.native_torch, name)
        with opforge.backend("native"):
            ours, theirs = gpu_times(lambda: op(*given), lambda: function(*given))  # noqa: B023
        detail = f"{ours:.1f} / {theirs:.1f} us"
        rows.append(Row(f"GPU time, library / torch: {name}", ours / theirs, limit, detail))
    return rows


def chains(_: Path) -> list[Row]:
    (x,) = inputs(HALF)
    rows = []
    for function in CHAINS:
        compiled = torch.compile(function, dynamic=False)
        op = getattr(torch.ops.native_torch, function.__name__)
        with opforge.backend("native"):
            ours, theirs = gpu_times(lambda: op(x), lambda: compiled(x))  # noqa: B023
        detail = f"{ours:.1f} / {theirs:.1f} us"
        what = f"GPU time of five pointwise calls, library / torch.compile: {function.__name__}"
        rows.append(Row(what, ours / theirs, 1.1, detail))
    return rows


def host_time(_: Path) -> list[Row]:
    x = torch.randn(64, 256, device="cuda").half()
    best = {"ours": float("inf"), "eager": float("inf")}
    calls = {"ours": lambda: torch.ops.native_torch.mixed(x), "eager": lambda: mixed(x)}
    with opforge.backend("native"):
        for _turn in range(30):
            for name, call in calls.items():
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _repeat in range(100):
                    call()
                spent = (time.perf_counter() - start) / 100 * 1e6
                best[name] = min(best[name], spent)
    detail = f"{best['ours']:.1f} / {best['eager']:.1f} us"
    what = "host time of 3 torch calls and 1 launch, library / eager"
    return [Row(what, best["ours"] / best["eager"], 0.35, detail)]


if __name__ == "__main__":
    assert __doc__ is not None
    measure(__doc__, build, [each_call, chains, host_time])
