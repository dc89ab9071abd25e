"""Ratios within one run, scripts in fresh processes, and the table that shows both."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src"

# Without cached bytecode a fresh process would spend its time compiling modules of opforge.
_ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


@dataclasses.dataclass(frozen=True)
class Row:
    """A ratio, its limit (None if it is only reported), and the figures behind it."""

    what: str
    ratio: float
    limit: float | None
    detail: str

    @property
    def within(self) -> bool:
        return self.limit is None or self.ratio <= self.limit


def child(script: str, folder: Path, **variables: str) -> Any:
    """The output of a script that runs in a fresh process."""
    path = os.pathsep.join([str(SOURCE), str(HERE)])
    head = "import json, sys, time, torch\n"
    done = subprocess.run(
        [sys.executable, "-c", head + script.format(folder=str(folder))],
        env={**_ENVIRONMENT, "PYTHONPATH": path, **variables},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def measure(
    doc: str, prepare: Callable[[Path], None], measurements: Sequence[Callable[[Path], list[Row]]]
) -> None:
    """Prepare a folder, measure in it, and show the rows: what the scripts' command lines do."""
    parser = argparse.ArgumentParser(description=doc.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a GPU")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(folder)
        rows = [row for take in measurements for row in take(folder)]
    show(rows, as_json=asked.json)


def show(rows: Sequence[Row], *, as_json: bool) -> None:
    """Print rows, and exit with 1 if one is over its limit."""
    if as_json:
        print(json.dumps([{**dataclasses.asdict(r), "within": r.within} for r in rows], indent=2))
    else:
        table = Table("", "ratio", "limit", "")
        for row in rows:
            style = "green" if row.within else "red"
            limit = "" if row.limit is None else f"{row.limit:g}"
            table.add_row(row.what, f"[{style}]{row.ratio:.3f}[/]", limit, row.detail)
        Console().print(table)
    sys.exit(not all(row.within for row in rows))
