"""The cost of a call: opforge against custom_op, define+impl and a bare autograd.Function.

All variants run interleaved in one process and the fastest round of each counts, so that the
ratios hold on a noisy machine. `--json` prints the figures as JSON. `--gpu` compares an op that
launches a Triton kernel with `torch.library.triton_op`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import opforge

CALLS, ROUNDS = 500, 200


@dataclasses.dataclass(frozen=True)
class Row:
    what: str
    figure: str
    limit: str
    within: bool
    detail: str


@dataclasses.dataclass(frozen=True)
class Config:
    scale: float
    shift: float
    repeat: int
    flag: bool
    weight: Tensor


def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def times(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    x, y = ctx.saved_tensors
    return grad * y, grad * x


def mul(x: Tensor, y: Tensor) -> Tensor:
    return x * y


class BareMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    backward = staticmethod(times)


def with_config(x: Tensor, cfg: Config) -> Tensor:
    return x + cfg.weight


def by_hand(
    x: Tensor, scale: float, shift: float, repeat: int, flag: bool, weight: Tensor
) -> Tensor:
    return x + weight


def fastest(
    variants: dict[str, Callable[[], Any]], after: Callable[[], Any] = lambda: None
) -> dict[str, float]:
    """Microseconds per call of each variant, from its fastest round; `after` ends a round."""
    best = dict.fromkeys(variants, float("inf"))
    for call in variants.values():
        for _ in range(CALLS):
            call()
    with no_gc():
        for _ in range(ROUNDS):
            for name, call in variants.items():
                start = time.perf_counter()
                for _ in range(CALLS):
                    call()
                after()
                best[name] = min(best[name], (time.perf_counter() - start) / CALLS * 1e6)
    return best


@contextlib.contextmanager
def no_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def compare(what: str, times_us: dict[str, float], base: str, peer: str, limit: float) -> Row:
    ratio = (times_us["opforge"] - times_us[base]) / (times_us[peer] - times_us[base])
    detail = ", ".join(f"{name} {us:.2f}" for name, us in times_us.items())
    return Row(what, f"{ratio:.2f}", f"<= {limit}", ratio <= limit, f"us: {detail}")


def without_backward() -> list[Row]:
    library = torch.library.Library("bench", "FRAGMENT")
    library.define("bare(Tensor x, Tensor y) -> Tensor")
    library.impl("bare", add, "CompositeExplicitAutograd")
    bare = torch.ops.bench.bare.default
    custom = torch.library.custom_op("bench::custom_add", add, mutates_args=())
    op = opforge.op("bench::add")(add)
    x, y = torch.randn(8), torch.randn(8)
    us = fastest(
        {
            "raw": lambda: add(x, y),
            "define+impl": lambda: bare(x, y),
            "custom_op": lambda: custom(x, y),
            "opforge": lambda: op(x, y),
        }
    )
    over = us["opforge"] - us["define+impl"]
    return [
        compare("no backward: (op - raw) / (custom_op - raw)", us, "raw", "custom_op", 0.3),
        Row("  over define + impl", f"{over:.2f} us", "target 2 us", over <= 2, ""),
    ]


def with_backward() -> list[Row]:
    custom = torch.library.custom_op("bench::custom_mul", mul, mutates_args=())
    custom.register_autograd(times, setup_context=setup)
    op = opforge.op("bench::mul", backward=times, setup_context=setup)(mul)
    x, y = torch.randn(8), torch.randn(8)
    us = fastest(
        {
            "raw": lambda: mul(x, y),
            "custom_op": lambda: custom(x, y),
            "opforge": lambda: op(x, y),
        }
    )
    a, b, grad = (
        torch.randn(8, requires_grad=True),
        torch.randn(8, requires_grad=True),
        torch.ones(8),
    )

    def there_and_back(call: Callable[..., Tensor]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(call(a, b), (a, b), grad)

    both = fastest(
        {
            "Function": there_and_back(BareMul.apply),
            "custom_op": there_and_back(custom),
            "opforge": there_and_back(op),
        }
    )
    return [
        compare("backward, nothing requires grad: the same", us, "raw", "custom_op", 0.4),
        compare(
            "forward + backward: (op - F) / (custom_op - F)", both, "Function", "custom_op", 0.6
        ),
    ]


def three(x: Tensor, y: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor, int]:
    return torch.empty(8), torch.empty(8), torch.empty(8), n


class BareThree(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        return three(*args)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> None:
        raise NotImplementedError


def several_outputs() -> list[Row]:
    custom = torch.library.custom_op("bench::custom_three", three, mutates_args=())
    op = opforge.op("bench::three", mode="custom_op")(three)
    x, y, followed = torch.randn(8), torch.randn(8), torch.randn(8, requires_grad=True)
    us = fastest(
        {
            "raw": lambda: three(x, y, 3),
            "custom_op": lambda: custom(x, y, 3),
            "opforge": lambda: op(x, y, 3),
        }
    )
    # Without a backward: going back raises.
    recorded = fastest(
        {
            "Function": lambda: BareThree.apply(x, followed, 3),
            "custom_op": lambda: custom(x, followed, 3),
            "opforge": lambda: op(x, followed, 3),
        }
    )
    return [
        compare("four outputs: the same", us, "raw", "custom_op", 0.35),
        compare("an input requires grad: the same", recorded, "Function", "custom_op", 0.85),
    ]


def dataclass_argument() -> list[Row]:
    flattened = opforge.op("bench::with_config")(with_config)
    hand = opforge.op("bench::by_hand")(by_hand)
    x, cfg = torch.randn(8), Config(1.0, 2.0, 3, True, torch.randn(8))
    us = fastest(
        {
            "by hand": lambda: hand(x, 1.0, 2.0, 3, True, cfg.weight),
            "opforge": lambda: flattened(x, cfg),
        }
    )
    more = us["opforge"] - us["by hand"]
    detail = ", ".join(f"{name} {t:.2f}" for name, t in us.items())
    return [
        Row(
            "dataclass, 4 scalars + tensor",
            f"{more:.2f} us",
            "<= 1.5 us",
            more <= 1.5,
            f"us: {detail}",
        )
    ]


def decorating() -> list[Row]:
    """Reading the body for kernels is timed separately: it depends on the body (discovery.py)."""

    def timed(index: int) -> tuple[float, float]:
        def plain(x: Tensor, y: Tensor, eps: float = 1e-5) -> Tensor:
            return x + y

        def configured(x: Tensor, cfg: Config) -> Tensor:
            return x + cfg.weight

        fn = configured if index % 2 else plain
        start = time.perf_counter()
        opforge.find_kernels(fn)
        read = time.perf_counter()
        opforge.op(f"bench::decorated{index}")(fn)
        reading = (read - start) * 1e3
        return (time.perf_counter() - read) * 1e3 - reading, reading

    all_ms, readings = zip(*[timed(i) for i in range(300)], strict=True)
    plain, configured = statistics.median(all_ms[::2]), statistics.median(all_ms[1::2])
    median, reading = statistics.median(all_ms), statistics.median(readings)
    detail = f"plain {plain:.2f}, with a dataclass {configured:.2f}; reading the body {reading:.2f}"
    return [Row("decorating, median", f"{median:.2f} ms", "<= 1 ms", median <= 1, detail)]


def triton_launch() -> list[Row]:
    """A call that allocates and launches once."""
    # Imported here, because it imports Triton, which the other rows do not need.
    from gpu_kernel import raw, wrapped  # noqa: PLC0415

    peer = torch.library.triton_op("bench::triton_op", wrapped, mutates_args=())
    custom = torch.library.custom_op("bench::opaque", raw, mutates_args=())
    op = opforge.op("bench::launch")(raw)
    assert opforge.info(op).mode == "triton_op"
    x = torch.randn(1000, device="cuda")

    def drained(call: Callable[[Tensor], Tensor]) -> Callable[[], Any]:
        return lambda: call(x)

    us = fastest(
        {
            "raw": drained(raw),
            "custom_op": drained(custom),
            "triton_op": drained(peer),
            "opforge": drained(op),
        },
        after=torch.cuda.synchronize,
    )
    title = "Triton, eager: (op - raw) / (triton_op - raw)"
    return [compare(title, us, "raw", "triton_op", 0.35)]


def importing() -> list[Row]:
    """The import time of a second process, which finds bytecode, as after an install with pip."""
    script = "import time, torch; t = time.time(); import opforge; {}; print(time.time() - t)"
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        return [
            _import_row(script.format("pass"), "import opforge, after torch", 10, env),
            _import_row(script.format("opforge.op"), "the same, and opforge.op", 100, env),
        ]


def _import_row(script: str, title: str, limit: int, env: dict[str, str]) -> Row:
    command = [sys.executable, "-c", script]
    runs = [
        float(subprocess.run(command, check=True, capture_output=True, env=env).stdout)
        for _ in range(6)
    ]
    ms = min(runs) * 1e3
    return Row(title, f"{ms:.0f} ms", f"<= {limit} ms", ms <= limit, "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--gpu", action="store_true", help="run only the rows that need a GPU")
    given = parser.parse_args()
    parts = (
        without_backward,
        with_backward,
        several_outputs,
        dataclass_argument,
        decorating,
        importing,
    )
    rows: list[Row] = []
    for part in (triton_launch,) if given.gpu else parts:
        rows += part()
    if given.json:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
    else:
        table = Table(title=f"call overhead, torch {torch.__version__}")
        for title in ("what", "figure", "limit", "", "detail"):
            table.add_column(title)
        for row in rows:
            table.add_row(
                row.what, row.figure, row.limit, "ok" if row.within else "OVER", row.detail
            )
        Console(width=150).print(table)
    return 0 if all(row.within or row.limit.startswith("target") for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
