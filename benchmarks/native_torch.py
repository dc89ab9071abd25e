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
COUNTS = {"x": native.tensor("m n", dtype="int32")}
PAIR = {"x": native.tensor("m n", dtype="fp16"), "y": native.tensor("m n", dtype="fp16")}
INDICES = {"x": native.tensor("m n", dtype="fp16"), "y": native.tensor("k", dtype="int64")}
PLACES = {"x": native.tensor("m n", dtype="fp16"), "y": native.tensor("m n", dtype="int64")}


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


# By name: the function and its declaration.
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "clone": (lambda x: x.clone(), HALF),
    "transposed": (lambda x: x.t().contiguous(), HALF),
    "copy_": (lambda x: torch.empty_like(x).copy_(x), HALF),
    "to_float": (lambda x: x.float(), HALF),
    "to_half": (lambda x: x.half(), FULL),
    "to_bfloat16": (lambda x: x.bfloat16(), HALF),
    "to_int": (lambda x: x.to(torch.int32), HALF),
    "fill_": (lambda x: torch.empty_like(x).fill_(2), HALF),
    "zero_": (lambda x: torch.empty_like(x).zero_(), HALF),
    "zeros_like": (torch.zeros_like, HALF),
    "full": (lambda x: torch.full(x.shape, 2.0, dtype=x.dtype, device=x.device), HALF),
    "arange": (lambda x: torch.arange(x.numel(), device=x.device), HALF),
    "exp": (torch.exp, HALF),
    "exp_fp32": (torch.exp, FULL),
    "log": (torch.log, HALF),
    "sqrt": (torch.sqrt, HALF),
    "rsqrt": (torch.rsqrt, HALF),
    "sigmoid": (torch.sigmoid, HALF),
    "silu": (torch.nn.functional.silu, HALF),
    "tanh": (torch.tanh, HALF),
    "tanh_fp32": (torch.tanh, FULL),
    "abs": (torch.abs, HALF),
    "neg": (torch.neg, HALF),
    "reciprocal": (torch.reciprocal, HALF),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), HALF),
    "square": (lambda x: x**2, HALF),
    "pow_fp32": (lambda x: x**1.7, FULL),
    "logical_not": (torch.logical_not, HALF),
    "bitwise_not": (torch.bitwise_not, COUNTS),
    "add": (torch.add, PAIR),
    "add_scalar": (lambda x: x + 1.5, HALF),
    "add_row": (lambda x: x + x[0], HALF),
    "add_column": (lambda x: x + x[:, :1], HALF),
    "sub": (torch.sub, PAIR),
    "mul": (torch.mul, PAIR),
    "div": (torch.div, PAIR),
    "floor_divide": (lambda x, y: x // y, PAIR),
    "remainder": (lambda x, y: x % y, PAIR),
    "greater": (torch.gt, PAIR),
    "equal_scalar": (lambda x: x == 0, HALF),
    "logical_and": (torch.logical_and, PAIR),
    "bitwise_and": (lambda x: x & 255, COUNTS),
    "where": (lambda x: torch.where(x > 0, x, 0.5), HALF),
    "sum": (lambda x: x.sum(), HALF),
    "sum_rows": (lambda x: x.sum(-1), HALF),
    "sum_columns": (lambda x: x.sum(0), HALF),
    "mean_fp32": (lambda x: x.mean(-1), FULL),
    "mean_columns": (lambda x: x.mean(0), HALF),
    "amax": (lambda x: x.amax(-1), HALF),
    "amax_all": (lambda x: x.amax(), HALF),
    "amin_columns": (lambda x: x.amin(0), HALF),
    "any": (lambda x: x.any(-1), HALF),
    "all": (lambda x: x.all(), HALF),
    "argmax": (lambda x: x.argmax(-1), HALF),
    "argmax_all": (lambda x: x.argmax(), HALF),
    "argmin_columns": (lambda x: x.argmin(0), HALF),
    "softmax": (lambda x: x.softmax(-1), HALF),
    "softmax_columns": (lambda x: x.softmax(0), HALF),
    "logsumexp": (lambda x: x.logsumexp(-1), HALF),
    "logsumexp_columns": (lambda x: x.logsumexp(0), HALF),
    "var_mean": (lambda x: torch.var_mean(x, -1), HALF),
    "var_mean_columns": (lambda x: torch.var_mean(x, 0), HALF),
    "cumsum": (lambda x: x.cumsum(-1), HALF),
    "cumsum_columns": (lambda x: x.cumsum(0), HALF),
    "cat": (lambda x, y: torch.cat([x, y], 1), PAIR),
    "cat_rows": (lambda x, y: torch.cat([x, y]), PAIR),
    "stack": (lambda x, y: torch.stack([x, y]), PAIR),
    "stack_last": (lambda x, y: torch.stack([x, y], -1), PAIR),
    "repeat": (lambda x: x.repeat(2, 1), HALF),
    "expand": (lambda x: x[0].expand(*x.shape).contiguous(), HALF),
    "index_select": (lambda x, y: x.index_select(0, y), INDICES),
    "index_select_columns": (lambda x, y: x.index_select(1, y), INDICES),
    "gather": (lambda x, y: x.gather(0, y), PLACES),
    "gather_columns": (lambda x, y: x.gather(1, y), PLACES),
    "embedding": (lambda x, y: torch.nn.functional.embedding(y, x), INDICES),
    "flip": (lambda x: x.flip(-1), HALF),
    "flip_rows": (lambda x: x.flip(0), HALF),
    "roll": (lambda x: x.roll(3, -1), HALF),
    "roll_rows": (lambda x: x.roll(3, 0), HALF),
    "tril": (torch.tril, HALF),
    "triu": (torch.triu, HALF),
    "mm": (torch.mm, PAIR),
}
# Bound by arithmetic, hence without a limit.
UNLIMITED = {"mm"}
PAIRS = {"var_mean", "var_mean_columns"}


CHAINS = (chain, curved_chain)


def declared(name: str, function: Callable[..., Any], specs: dict[str, Any]) -> Any:
    names = list(specs)
    returns = tuple[Tensor, Tensor] if name in PAIRS else Tensor
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
    more = {function.__name__: (function, HALF) for function in (*CHAINS, mixed)}
    bodies = {**CALLS, **more}
    made = [declared(name, function, specs) for name, (function, specs) in bodies.items()]
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    native.build(made, folder / "dist", name="native_torch", archs=[arch], torch=True)
    opforge.load(folder / "dist")


def inputs(specs: dict[str, Any]) -> list[Tensor]:
    return [tensor(spec) for spec in specs.values()]


def tensor(spec: Any) -> Tensor:
    shape = [SIZE] * len(spec.dims.split())
    if spec.dtype.startswith("int"):
        return torch.randint(SIZE, shape, dtype=getattr(torch, spec.dtype), device="cuda")
    dtypes = {"fp16": torch.float16, "fp32": torch.float32}
    return torch.randn(shape, device="cuda").to(dtypes[spec.dtype])


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
    for name, (function, specs) in CALLS.items():
        given = inputs(specs)
        op = getattr(torch.ops.native_torch, name)
        with opforge.backend("native"):
            ours, theirs = gpu_times(lambda: op(*given), lambda: function(*given))  # noqa: B023
        detail = f"{ours:.1f} / {theirs:.1f} us"
        limit = None if name in UNLIMITED else 1.1
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
