"""Host time of public functions in eager, each as it is and as an op of itself.

    PYTHONPATH=src python benchmarks/op_host_time.py [word ...]

The packages and inputs are those of tests/gpu/test_wild_native.py. Every round calls all variants,
so that they see the same machine, and waits for the GPU; the medians of the quickest of six blocks
of rounds count.
`bare` is the function behind `Library.define` and `impl`: what an op costs without any check.
`parameter` has a weight that requires grad, against `function` in a `torch.autograd.Function`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import opforge

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "tests")]

# Calls of a round: the GPU's queue must not fill up, which would make the host wait.
CALLS, ROUNDS, BLOCKS = 20, 25, 6
LIMIT = 6.0


@dataclasses.dataclass(frozen=True)
class Row:
    """Microseconds per call."""

    what: str
    function: float
    bare: float
    op: float
    custom_op: float
    differentiated: float | None = None
    op_differentiated: float | None = None

    @property
    def more(self) -> float:
        return self.op - self.function

    @property
    def within(self) -> bool:
        return self.more <= LIMIT


def medians(variants: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Microseconds per call of each variant: medians of interleaved rounds, of the quickest block.

    Within seconds a shared machine changes its speed by a factor of two, for all variants alike.
    """
    for call in variants.values():
        for _ in range(CALLS):
            call()
    with uncollected():
        blocks = [_block(variants) for _ in range(BLOCKS)]
    return min(blocks, key=lambda block: sum(block.values()))


def _block(variants: dict[str, Callable[[], Any]]) -> dict[str, float]:
    rounds: dict[str, list[float]] = {name: [] for name in variants}
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    for _ in range(ROUNDS):
        for name, call in variants.items():
            wait()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            rounds[name].append((time.perf_counter() - start) / CALLS * 1e6)
    return {name: statistics.median(each) for name, each in rounds.items()}


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def measured(what: str, number: int, fn: Any, args: list[Any], mutates: Any = ()) -> Row:
    name, fragment = f"{fn.__name__}_{number}", torch.library.Library("host_bare", "FRAGMENT")
    fragment.define(name + torch.library.infer_schema(fn, mutates_args=mutates))
    fragment.impl(name, fn, "CompositeExplicitAutograd")
    bare = getattr(torch.ops.host_bare, name).default
    custom = torch.library.custom_op(f"host_custom::{name}", fn, mutates_args=mutates)
    op = opforge.op(fn, name=f"host_op::{name}", mutates_args=mutates)
    variants: dict[str, Callable[[], Any]] = {
        "function": lambda: fn(*args),
        "bare": lambda: bare(*args),
        "op": lambda: op(*args),
        "custom_op": lambda: custom(*args),
    }
    followed = with_a_parameter(args)
    if followed is not None and not mutates:
        function = of_autograd(fn)
        variants["differentiated"] = lambda: function(*followed)
        variants["op_differentiated"] = lambda: op(*followed)
    return Row(what, **medians(variants))


def with_a_parameter(args: list[Any]) -> list[Any] | None:
    """The same with the last floating-point tensor as a parameter, where there are several."""
    places = [i for i, arg in enumerate(args) if arg.is_floating_point()]
    if len(places) < 2:
        return None
    return [torch.nn.Parameter(a) if i == places[-1] else a for i, a in enumerate(args)]


def of_autograd(fn: Callable[..., Any]) -> Callable[..., Any]:
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            return fn(*args)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> None:
            raise NotImplementedError

    apply: Callable[..., Any] = Function.apply
    return apply


def rows(words: list[str]) -> Iterator[Row]:
    # They bring Triton, and the packages ask for a GPU.
    import native_coverage  # noqa: PLC0415

    from support.wild.native_functions import EAGER, inputs  # noqa: PLC0415

    for number, forward in enumerate(native_coverage.TABLE):
        what = f"{forward.name} {forward.call}"
        if forward.call not in EAGER or not all(word in what for word in words):
            continue
        given = [tensor.cuda() for tensor in inputs(forward, 0).values()]
        try:
            fn = native_coverage.made(forward, importlib.import_module(forward.module))
            yield measured(what, number, fn, given, forward.mutates)
        except Exception as error:  # noqa: BLE001  # whatever it is, the others go on
            print(f"{what}: {type(error).__name__}: {error}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("words", nargs="*", help="measure what has all of these in its name")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a GPU")
    # FlagGems looks for the vendor otherwise.
    os.environ.setdefault("GEMS_VENDOR", "nvidia")
    found = []
    for row in rows(asked.words):
        found.append(row)
        print(
            f"{row.more:+6.1f} (bare {row.bare - row.function:+.1f})  {row.what}", file=sys.stderr
        )
    if asked.json:
        print(
            json.dumps([{**dataclasses.asdict(row), "more": row.more} for row in found], indent=2)
        )
    else:
        columns = [field.name for field in dataclasses.fields(Row)]
        table = Table(*columns, f"op - function (limit {LIMIT:g})", title="host time in us, median")
        for row in found:
            times = [getattr(row, name) for name in columns[1:]]
            style = "green" if row.within else "red"
            shown = ["" if t is None else f"{t:.1f}" for t in times]
            table.add_row(row.what, *shown, f"[{style}]{row.more:+.1f}[/]")
        Console(width=180).print(table)
    return not all(row.within for row in found)


if __name__ == "__main__":
    raise SystemExit(main())
