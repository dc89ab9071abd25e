"""A Triton op under torch.compile, against triton_op and custom_op.

    python benchmarks/compiled.py     # needs a GPU

Compile times are those of fresh compilations with Inductor's caches off; the variants take turns,
and the fastest of each counts. Call times are those of the compiled function on a small tensor,
where host time dominates.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"

import torch
from gpu_kernel import raw, wrapped
from rich.console import Console
from rich.table import Table
from torch import Tensor

import opforge

ROUNDS, CALLS = 6, 2000


def variants() -> dict[str, Callable[[Tensor], Tensor]]:
    opaque = torch.library.custom_op("bench::opaque_double", raw, mutates_args=())
    opaque.register_fake(torch.empty_like)
    return {
        "opforge": opforge.op("bench::double")(raw),
        "triton_op": torch.library.triton_op("bench::double_op", wrapped, mutates_args=()),
        "custom_op": opaque,
    }


def compiled(op: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return torch.compile(lambda x: op(x + 1) * 2 + 1, fullgraph=True)


def compile_seconds(ops: dict[str, Callable[[Tensor], Tensor]], x: Tensor) -> dict[str, float]:
    best = dict.fromkeys(ops, float("inf"))
    for round_ in range(ROUNDS + 1):
        for name, op in ops.items():
            torch.compiler.reset()
            start = time.perf_counter()
            compiled(op)(x)
            torch.cuda.synchronize()
            if round_:
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def call_microseconds(ops: dict[str, Callable[[Tensor], Tensor]], x: Tensor) -> dict[str, float]:
    torch.compiler.reset()
    calls = {name: compiled(op) for name, op in ops.items()}
    best = dict.fromkeys(ops, float("inf"))
    for call in calls.values():
        for _ in range(200):
            call(x)
    for _ in range(20):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS // 20):
                call(x)
            torch.cuda.synchronize()
            best[name] = min(best[name], (time.perf_counter() - start) / (CALLS // 20) * 1e6)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    if not torch.cuda.is_available():
        print("needs a GPU")
        return 1
    ops, x = variants(), torch.randn(1000, device="cuda")
    seconds, us = compile_seconds(ops, x), call_microseconds(ops, x)
    rows: list[tuple[str, float, str, bool]] = [
        ratio("compiling: op / triton_op", seconds["opforge"] / seconds["triton_op"], at_most=1.05),
        ratio("a call: op / triton_op", us["opforge"] / us["triton_op"], at_most=1.05),
        ratio("a call: custom_op / op", us["custom_op"] / us["opforge"], at_least=1.5),
    ]
    if as_json:
        print(json.dumps({"rows": rows, "seconds": seconds, "us": us}, indent=2))
    else:
        show(rows, seconds, us)
    return 0 if all(within for *_, within in rows) else 1


def ratio(
    what: str, value: float, *, at_most: float = float("inf"), at_least: float = 0.0
) -> tuple[str, float, str, bool]:
    limit = f">= {at_least}" if at_least else f"<= {at_most}"
    return what, round(value, 3), limit, at_least <= value <= at_most


def show(rows: list[Any], seconds: dict[str, float], us: dict[str, float]) -> None:
    table = Table("what", "figure", "limit", "", title=f"compiled, torch {torch.__version__}")
    for what, value, limit, within in rows:
        table.add_row(what, f"{value:.2f}", limit, "ok" if within else "OVER")
    Console(width=100).print(table)
    print("seconds to compile:", ", ".join(f"{n} {s:.2f}" for n, s in seconds.items()))
    print("us per call:", ", ".join(f"{n} {t:.1f}" for n, t in us.items()))


if __name__ == "__main__":
    raise SystemExit(main())
