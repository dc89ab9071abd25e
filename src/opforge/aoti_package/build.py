"""`opforge.package`: orchestrates export, compilation and verification, and nothing else."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .. import _compat
from ..errors import BadOption, BadPackagePath, CompileFailed, NeedsGpu
from .cases import Case, eager_cases, mutated_state
from .contents import PackagedInput, kernels_of, needed_at_run_time, ops_of
from .dynamic import Dynamic, read_dynamic
from .export import Exported, export
from .process import workplace
from .record import Package, Row
from .sizes import Symbol, open_sizes
from .subject import Subject, read_path, read_subject
from .traces import Tracer
from .verify import Tolerance, Verification, verify


def package(
    model: Any,
    args: tuple[Any, ...],
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic: Dynamic | None = None,
    strict: bool | None = None,
    also: Sequence[tuple[Any, ...]] = (),
    rtol: float | None = None,
    atol: float | None = None,
    inductor_configs: Mapping[str, Any] | None = None,
) -> Package:
    """Export a model or an op, compile it with AOTInductor, and verify it in a fresh process.

        built = opforge.package(model, (x,), "model.pt2", dynamic={"x": {0: ("batch", 1, 1024)}})
        print(built)
        built.load()(x)

    Nothing is left at `path` unless the package agrees with eager, for the given arguments, for
    other sizes in the dynamic ranges, and for every tuple of arguments in `also`.
    """
    place = read_path(path)
    _check_options(strict, rtol, atol)
    subject = read_subject(model, args, kwargs)
    dims = read_dynamic(dynamic, subject)
    exported = export(subject, dims, strict=strict)
    symbols = open_sizes(exported.program, subject, dims)
    cases = _cases(subject, exported.program, symbols, also)
    configs, notes = _configs(subject, exported.program, inductor_configs)
    with workplace() as folder:
        # Under its own name, which the archive carries inside; moved only once it is verified.
        built = folder / place.name
        seconds, static_launch = _compile(subject, exported, built, configs)
        ops, kernels = ops_of(exported.program, built), kernels_of(exported.program, built)
        training = subject.module.training
        needed = needed_at_run_time(ops)
        verification = verify(built, cases, needed, Tolerance(rtol, atol), training=training)
        _put(built, place)
    return Package(
        path=place,
        title=subject.title,
        strict=exported.strict,
        reasons=(*map(str, exported.failures), *notes, *verification.notes),
        report=_report(place, exported, seconds, static_launch, symbols, verification),
        ops=ops,
        kernels=kernels,
        inputs=_inputs(cases[0], subject),
        preload=verification.preload,
        tracer=Tracer(subject, exported.program, cases[0], bool(symbols)),
    )


def _check_options(strict: Any, rtol: Any, atol: Any) -> None:
    if strict is not None and not isinstance(strict, bool):
        raise BadOption(f"strict must be None, True or False, got {strict!r}", fix="strict=None")
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not (isinstance(value, (int, float)) and value >= 0):
            raise BadOption(f"{name} must be a number >= 0, got {value!r}", fix=f"{name}=1e-3")


def _put(built: Path, place: Path) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(built, place)
    except OSError as error:
        raise BadPackagePath(
            f"{place} cannot be written",
            found=f"{type(error).__name__}: {error}",
            fix="name a path in a folder of your own",
        ) from error


def _cases(
    subject: Subject, program: Any, symbols: Sequence[Symbol], also: Sequence[Any]
) -> list[Case]:
    try:
        return eager_cases(program, subject, symbols, also)
    except NeedsGpu as error:
        raise NeedsGpu(
            f"{subject.title} was exported, but to compile and verify it needs a GPU",
            found=error.what,
            fix="run this on a machine with the GPU that the package is for, with tensors there",
            op=error.op,
            location=error.location,
        ) from error


def _configs(
    subject: Subject, program: Any, given: Mapping[str, Any] | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Inductor's configs for this compilation, and why they are not the default."""
    mutated, chosen = mutated_state(program, subject.module), dict(given or {})
    folding = _compat.aoti.CONSTANT_FOLDING
    if not mutated or folding in chosen:
        return chosen, ()
    # pytorch#165444: a buffer of one element is folded into the code, and its changes are lost.
    note = f"{folding} is off, because a call changes {', '.join(mutated)}"
    return {folding: False, **chosen}, (note,)


def _compile(
    subject: Subject, exported: Exported, path: Path, configs: dict[str, Any]
) -> tuple[float, str]:
    started = time.perf_counter()
    try:
        static_launch = _compat.aoti.compile_package(exported.program, path, configs)
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise CompileFailed(
            f"{subject.title} was exported, but AOTInductor cannot compile it",
            found="\n         ".join([f"{type(error).__name__}: {lines[0] if lines else ''}"])
            + "".join(f"\n         {line}" for line in lines[1:8]),
            fix="`opforge doctor` shows what this machine lacks; the cause has the full error",
        ) from error
    return time.perf_counter() - started, static_launch


def _report(  # noqa: PLR0917  # one table out of every stage
    path: Path,
    exported: Exported,
    compile_seconds: float,
    static_launch: str,
    symbols: Sequence[Symbol],
    verification: Verification,
) -> tuple[Row, ...]:
    way = "strict" if exported.strict else "non-strict"
    size = path.stat().st_size
    load = verification.load_seconds
    without = ", which imported no opforge" if verification.without_opforge else ""
    return (
        Row("export", exported.seconds, f"{exported.seconds:.1f} s, {way}"),
        Row("compile", compile_seconds, f"{compile_seconds:.1f} s"),
        Row("static launch", static_launch, f"{static_launch} ({_compat.aoti.STATIC_LAUNCH})"),
        Row("size", size, f"{size / 1e6:.2f} MB"),
        Row("load", load, f"{load:.2f} s in a fresh process{without}"),
        *(Row("dynamic", s.label, f"{s.label} from {s.range}") for s in symbols),
        *(
            Row("verified", case.max_error, f"{case.label}: max error {case.max_error:.3g}")
            for case in verification.cases
        ),
    )


def _inputs(case: Case, subject: Subject) -> tuple[PackagedInput, ...]:
    leaves = zip(subject.paths, subject.leaves, strict=True)
    names = [path for path, value in leaves if isinstance(value, torch.Tensor)]
    return tuple(
        PackagedInput(name, str(t.dtype).removeprefix("torch."), tuple(t.shape), str(t.device))
        for name, t in zip(names, case.inputs, strict=True)
    )
