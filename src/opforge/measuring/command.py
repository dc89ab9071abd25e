"""`opforge tune`: what it was given, and what it says."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from ..native.commands.build import operators
from ..tuning.table import Kernel, Row
from .measure import Tuned, Watcher, tune
from .sizes import Point, parse


def run(
    targets: tuple[str, ...],
    output: str,
    *,
    arch: str | None,
    sizes: tuple[str, ...],
    only: tuple[str, ...],
    again: bool,
) -> str:
    """Measure, and say what came of it."""
    given = parse(sizes)
    ops = operators(targets, only)
    console = Console(stderr=True)
    watcher: Watcher = Bar(console) if console.is_terminal else Lines()
    try:
        done = tune(ops, output, sizes=given, arch=arch, again=again, watcher=watcher)
    except KeyboardInterrupt:
        # What was measured is in the file already.
        _stop(watcher)
        raise SystemExit(
            f"interrupted; {output} has what was measured, and the same command goes on from there"
            + (" without --again" if again else "")
        ) from None
    finally:
        _stop(watcher)
    return _summary(done, output)


def _summary(done: Tuned, output: str) -> str:
    if not len(done.table):
        return f"nothing to tune, so {output} was not written"
    return (
        f"{output}: {done.measured} rows measured, {done.known} were there; "
        f"{len(done.table)} rows of {len(done.table.rows)} kernels in all"
    )


def _stop(watcher: Watcher) -> None:
    if isinstance(watcher, Bar):
        watcher.bar.stop()


class Bar(Watcher):
    """A bar over the calls, with every row above it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = RichProgress(
            TextColumn("tuning"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
        )
        self.task: Any = None

    def start(self, calls: int) -> None:
        self.task = self.bar.add_task("", total=calls)
        self.bar.start()

    def called(self, op: str, point: Point) -> None:
        shown = ", ".join(f"{n}={v}" for n, v in point.values.items())
        self.bar.update(self.task, advance=1, description=f"{op} {shown}")

    def measured(self, kernel: Kernel, row: Row, configs: int) -> None:
        self.console.print(row_line(kernel, row, configs), markup=False, highlight=False)

    def note(self, text: str) -> None:
        self.console.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)


class Lines(Watcher):
    """A line a row, for logs."""

    def measured(self, kernel: Kernel, row: Row, configs: int) -> None:
        self.say(row_line(kernel, row, configs))

    def note(self, text: str) -> None:
        self.say(f"note: {text}")

    @staticmethod
    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def row_line(kernel: Kernel, row: Row, configs: int) -> str:
    """`gemm_kernel float16 m=16, n=4096: 12.1 us with BLOCK_M=16, ..., best of 6`."""
    at = ", ".join(f"{n}={v}" for n, v in zip(kernel.key, row.at, strict=True))
    config = ", ".join(f"{n}={v}" for n, v in row.config)
    dtypes = ", ".join(kernel.dtypes)
    return f"{kernel.name} {at} ({dtypes}): {row.us:.1f} us with {config}, best of {configs}"
