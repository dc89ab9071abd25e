"""`opforge tune`: its arguments, and what it prints."""

from __future__ import annotations

import click
from rich.console import Console

from ..native.commands.build import operators
from ..progress import ProgressBar, watched_terminal
from ..tuning.table import TunedKernel, TuningRow
from .measure import Watcher, tune
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
    """Measure, and summarize."""
    given = parse(sizes)
    ops = operators(targets, only)
    console = watched_terminal()
    watcher = LineWatcher() if console is None else BarWatcher(console)
    try:
        done = tune(ops, output, sizes=given, arch=arch, again=again, watcher=watcher)
    except KeyboardInterrupt:
        # What was measured is in the file already.
        raise SystemExit(
            f"interrupted: {output} has what was measured, and the same command continues there"
            + (" without --again" if again else "")
        ) from None
    finally:
        watcher.stop()
    if not len(done.table):
        return f"nothing to tune, so {output} was not written"
    return (
        f"{output}: {done.measured} rows measured, {done.known} already there; "
        f"{len(done.table)} rows for {len(done.table.rows)} kernels in total"
    )


class LineWatcher(Watcher):
    """One line per row, for logs."""

    def measured(self, kernel: TunedKernel, row: TuningRow, configs: int) -> None:
        self.say(row_line(kernel, row, configs))

    def note(self, text: str) -> None:
        self.say(f"note: {text}")

    def say(self, text: str) -> None:
        click.echo(text, err=True)


class BarWatcher(LineWatcher):
    """A bar over the calls, with every row above it."""

    def __init__(self, console: Console) -> None:
        self._bar = ProgressBar("tuning", console)

    def start(self, calls: int) -> None:
        self._bar.start(calls)

    def called(self, op: str, point: Point) -> None:
        self._bar.advance(f"{op} {point}")

    def say(self, text: str) -> None:
        self._bar.say(text)

    def stop(self) -> None:
        self._bar.stop()


def row_line(kernel: TunedKernel, row: TuningRow, configs: int) -> str:
    """`gemm_kernel float16 m=16, n=4096: 12.1 us with BLOCK_M=16, ..., best of 6`."""
    at = ", ".join(f"{n}={v}" for n, v in zip(kernel.key, row.at, strict=True))
    config = ", ".join(f"{n}={v}" for n, v in row.config)
    dtypes = ", ".join(kernel.dtypes)
    return f"{kernel.name} {at} ({dtypes}): {row.us:.1f} us with {config}, best of {configs}"
