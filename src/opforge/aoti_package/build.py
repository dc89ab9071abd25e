"""`opforge.package`: orchestrates export, compilation and verification, and nothing else."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .. import _compat
from ..errors import BadOption, BuildFailed, NeedsGpu
from ..notebook import size
from .contents import PackagedInput, kernels_of, needed_at_run_time, ops_of
from .dynamic import Dynamic, read_dynamic
from .dynamic_sizes import Symbol, open_sizes
from .eager_calls import EagerCall, eager_calls, mutated_state
from .export import Exported, export
from .exportable import Exportable, read_exportable
from .failure import indented
from .package_path import put, read_path
from .package_record import Package, ReportRow
from .process import refuse_while_verifying, workplace
from .profiling import write_traces
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

    `path` is written only if the package agrees with eager for the given arguments, for other
    sizes in the dynamic ranges, and for every tuple of arguments in `also`.
    """
    refuse_while_verifying("opforge.package")
    place = read_path(path)
    _check_options(strict, rtol, atol)
    exportable = read_exportable(model, args, kwargs)
    dims = read_dynamic(dynamic, exportable)
    exported = export(exportable, dims, strict=strict)
    symbols = open_sizes(exported.program, exportable, dims)
    calls = _calls(exportable, exported.program, symbols, also)
    configs, notes = _configs(exportable, exported.program, inductor_configs)
    with workplace() as folder:
        # Built under its final name, which the archive repeats inside; moved once it is verified.
        built = folder / place.name
        seconds, static_launch = _compile(exportable, exported, built, configs)
        ops, kernels = ops_of(exported.program, built), kernels_of(exported.program, built)
        training = exportable.module.training
        needed = needed_at_run_time(ops)
        verification = verify(built, calls, needed, Tolerance(rtol, atol), training=training)
        put(built, place)
    return Package(
        path=place,
        title=exportable.title,
        strict=exported.strict,
        reasons=(*map(str, exported.failures), *notes, *verification.notes),
        report=_report(place, exported, seconds, static_launch, symbols, verification),
        ops=ops,
        kernels=kernels,
        inputs=_inputs(calls[0], exportable),
        preload=verification.preload,
        profiler=functools.partial(
            write_traces, exportable, exported.program, calls[0], dynamic=bool(symbols)
        ),
    )


def _check_options(strict: Any, rtol: Any, atol: Any) -> None:
    if strict is not None and not isinstance(strict, bool):
        raise BadOption(f"strict must be None, True or False, got {strict!r}", fix="strict=None")
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not (isinstance(value, (int, float)) and value >= 0):
            raise BadOption(f"{name} must be a number >= 0, got {value!r}", fix=f"{name}=1e-3")


def _calls(
    exportable: Exportable, program: Any, symbols: Sequence[Symbol], also: Sequence[Any]
) -> list[EagerCall]:
    try:
        return eager_calls(program, exportable, symbols, also)
    except NeedsGpu as error:
        raise NeedsGpu(
            f"{exportable.title} was exported, but compiling and verifying it needs a GPU",
            found=error.what,
            fix="run this with CUDA tensors on a machine with the GPU that the package is for",
            op=error.op,
            location=error.location,
        ) from error


def _configs(
    exportable: Exportable, program: Any, given: Mapping[str, Any] | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Inductor's configs for this compilation, and why they are not the default."""
    mutated, chosen = mutated_state(program, exportable.module), dict(given or {})
    folding = _compat.aoti.CONSTANT_FOLDING
    if not mutated or folding in chosen:
        return chosen, ()
    # pytorch#165444: a buffer of one element is folded into the code, and its changes are lost.
    note = f"{folding} is off, because a call changes {', '.join(mutated)}"
    return {folding: False, **chosen}, (note,)


def _compile(
    exportable: Exportable, exported: Exported, path: Path, configs: dict[str, Any]
) -> tuple[float, str]:
    started = time.perf_counter()
    try:
        static_launch = _compat.aoti.compile_package(exported.program, path, configs)
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise BuildFailed(
            f"{exportable.title} was exported, but AOTInductor cannot compile it",
            found=indented([f"{type(error).__name__}: {''.join(lines[:1])}", *lines[1:8]]),
            fix="`opforge doctor` shows what this machine lacks; `__cause__` of this exception has "
            "the full error",
        ) from error
    return time.perf_counter() - started, static_launch


def _report(  # noqa: PLR0917  # one table out of every stage
    path: Path,
    exported: Exported,
    compile_seconds: float,
    static_launch: str,
    symbols: Sequence[Symbol],
    verification: Verification,
) -> tuple[ReportRow, ...]:
    way = "strict" if exported.strict else "non-strict"
    weight = path.stat().st_size
    load = verification.load_seconds
    without = ", without importing opforge" if verification.without_opforge else ""
    return (
        ReportRow("export", exported.seconds, f"{exported.seconds:.1f} s, {way}"),
        ReportRow("compile", compile_seconds, f"{compile_seconds:.1f} s"),
        ReportRow(
            "static launch", static_launch, f"{static_launch} ({_compat.aoti.STATIC_LAUNCH})"
        ),
        ReportRow("size", weight, size(weight)),
        ReportRow("load", load, f"{load:.2f} s in a fresh process{without}"),
        *(ReportRow("dynamic", s.label, f"{s.label} from {s.range}") for s in symbols),
        *(
            ReportRow("verified", call.max_error, f"{call.label}: max error {call.max_error:.3g}")
            for call in verification.calls
        ),
    )


def _inputs(call: EagerCall, exportable: Exportable) -> tuple[PackagedInput, ...]:
    leaves = zip(exportable.paths, exportable.leaves, strict=True)
    names = [path for path, value in leaves if isinstance(value, torch.Tensor)]
    return tuple(
        PackagedInput(name, str(t.dtype).removeprefix("torch."), tuple(t.shape), str(t.device))
        for name, t in zip(names, call.inputs, strict=True)
    )
