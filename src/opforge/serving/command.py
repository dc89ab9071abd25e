"""`opforge build launches.json`: what the command says about a served build."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import environment
from ..errors import BadOption
from ..native.artifacts import build_record
from ..programs import run_program
from ..progress import watching
from ..recording.command import joined, listing
from ..recording.model import refuse_place
from . import manifest

# What only libraries of operators have.
_OTHERS = (
    "name", "static", "ptx", "only", "sources_only", "torch", "tvm_ffi", "jax", "depfile", "tuning",
)  # fmt: skip


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


def run(
    targets: Sequence[str],
    output: str,
    archs: Sequence[str],
    *,
    widen: Sequence[str] = (),
    jobs: int | None = None,
    dask: str | None = None,
    verbose: bool = False,
    force: bool = False,
    only_list: bool = False,
    **others: Any,
) -> str:
    """Build recordings, and report the result; or list what would be built."""
    from .build import build

    if only_list:
        return listing(joined(targets))

    given = [name for name in _OTHERS if others.get(name)]
    if given:
        option = f"--{given[0].replace('_', '-')}"
        raise BadOption(f"{option} is for operators, not for recordings", fix=f"leave out {option}")
    files = [Path(target).resolve() for target in targets]
    arguments = {"targets": [*map(str, files)], "archs": sorted(archs), "widen": [*widen]}
    if not force and not verbose and build_record.find_unchanged(output, arguments):
        return f"{output}: nothing has changed since the last build"
    from ..native.kernels.compile import Progress
    from ..native.kernels.workers import dask_executor

    progress = Progress(watching("compiling"))
    with dask_executor(dask, progress.note) as executor:
        done = build(
            joined(targets),
            output,
            archs=archs,
            widen=widen,
            jobs=jobs,
            executor=executor,
            progress=progress,
            files=files,
            arguments=arguments,
        )
    notes = [f"note: {note}" for note in done.notes]
    return "\n".join([*notes, *done.weights(), str(done)] if verbose else [*notes, str(done)])


def rebuild(sources: Sequence[str], arguments: Mapping[str, Any], output: str) -> None:
    """Build recordings with the arguments of a record, without the cache."""
    from .build import build

    build(
        joined(sources),
        output,
        archs=arguments["archs"],
        widen=arguments["widen"],
        cache=None,
        files=[Path(source) for source in sources],
        arguments=arguments,
    )
