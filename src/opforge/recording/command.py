"""`opforge record`: runs a program with its launches recorded; and `opforge list` of the result."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import environment
from ..native.ir.kernels import Choice
from ..programs import run_program
from .constants import show
from .journal import read_folder
from .model import RecordedVariant, Recording, read, refuse_unwritable

_NOTHING = (
    "nothing was recorded: the program launched no Triton kernel, ran under TRITON_INTERPRET=1, or "
    "started Python with -I, -E or -S, which ignore PYTHONPATH"
)


def run(command: Sequence[str], output: str) -> tuple[int, str]:
    """Run a program and write its recording; its exit status, and a summary."""
    refuse_unwritable(output)
    with tempfile.TemporaryDirectory(prefix="opforge-record-") as folder:
        status = run_program(command, {environment.RECORD.name: folder})
        recording = read_folder(Path(folder))
    told = [f"{output}: {recording}" if recording.kernels else _NOTHING]
    told += filter(None, [recording.save_unless_empty(output)])
    told += [f"note: {m.kernel} ({m.first}): {m.reason}" for m in recording.missed]
    return status, "\n".join(told)


def merge(files: Sequence[str], output: str) -> str:
    """Join recordings into one file."""
    refuse_unwritable(output)
    recording = joined(files)
    recording.save(output)
    return f"{output}: {recording}"


def joined(files: Sequence[str]) -> Recording:
    return functools.reduce(Recording.joined, map(read, files), Recording())


def listing(recording: Recording) -> str:
    """A recording as a table: kernels, their variants, and the sizes that led to them."""
    table = Table("kernel", "variant", box=SIMPLE_HEAD)
    table.add_column("launches", justify="right")
    table.add_column("sizes", overflow="fold")
    for kernel in sorted(recording.kernels, key=lambda k: (k.module, k.name)):
        name = f"{_near(kernel.module)}:{kernel.name}\n{_near(kernel.location)}"
        for variant in kernel.variants:
            sizes = "\n".join(_named(seen.items()) for seen in variant.sizes)
            cells = (name, _variant(variant), f"{variant.launches}", sizes)
            # Text, not str: brackets in a path are not markup.
            table.add_row(*(Text(cell, overflow="fold") for cell in cells))
            name = ""
        for choice in kernel.choices:
            table.add_row("", Text(_choice(choice, is_printed=bool(kernel.text))))
        table.add_section()
    lines = [str(recording)]
    if recording.kernels:
        lines.append(_printed(table))
    lines += [f"note: {m.kernel} ({m.location}): {m.reason}" for m in recording.missed]
    return "\n".join(lines)


def _printed(table: Table) -> str:
    # Wide enough to be read where the output is not a terminal, too.
    console = Console(width=max(Console().width, 100), color_system=None)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _variant(variant: RecordedVariant) -> str:
    """Its arguments and constants, and below them what else decides what is compiled.

    `x_ptr: *fp32 (16), n: i32 (1), BLOCK=1024`
    """
    arguments = []
    for name, kind in variant.types:
        assumed = "1" if name in variant.ones else "16" if name in variant.divisible else ""
        arguments.append(f"{name}: {kind}{f' ({assumed})' if assumed else ''}")
    first = f"first at {_near(variant.first)}" if variant.first else ""
    above = filter(None, [*arguments, _named(variant.constants)])
    below = filter(None, [variant.arch, _named(variant.options), first])
    return f"{', '.join(above)}\n{', '.join(below)}"


def _near(place: str) -> str:
    """A path below the current folder as people write it; anything else as it is."""
    return place.removeprefix(f"{Path.cwd()}{os.sep}")


def _choice(choice: Choice, *, is_printed: bool) -> str:
    """`for about x=8192, r0_=64 on sm_90: XBLOCK=1`: sizes as Inductor's hints have them."""
    key, config = _named(choice.key), _named(choice.config)
    if is_printed:
        return f"{f'for about {key} ' if key else ''}on {choice.arch}: {config}"
    return f"tuned for {key} ({', '.join(choice.dtypes)}), {choice.arch}: {config}"


def _named(values: Iterable[tuple[str, Any]]) -> str:
    return ", ".join(f"{name}={show(value)}" for name, value in values)
