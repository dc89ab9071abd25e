"""`opforge serve`: runs a program whose Triton kernels come from a folder."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from .. import environment
from ..programs import run_program
from ..recording.model import refuse_place
from . import manifest


def serve(
    folder: str,
    command: Sequence[str],
    *,
    strict: bool,
    tune_missing: bool,
    counts: str | None = None,
) -> int:
    """Run a program that serves a folder; its exit status."""
    manifest.read(Path(folder))
    variables = {environment.SERVE.name: str(Path(folder).absolute())}
    if strict:
        variables[environment.SERVE_STRICT.name] = "1"
    if tune_missing:
        variables[environment.SERVE_TUNE_MISSING.name] = "1"
    if counts is None:
        return run_program(command, variables)
    from .report import joined as counted

    refuse_place(counts)
    with tempfile.TemporaryDirectory(prefix="opforge-serve-") as place:
        status = run_program(command, {**variables, environment.SERVE_COUNTS.name: place})
        Path(counts).write_text(counted(Path(place)).to_json(), encoding="utf-8")
    return status
