"""`opforge.package`: orchestrates export, compilation and verification; what its command reads."""

from __future__ import annotations

import functools
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .. import _compat
from ..errors import BadOption, BadSignature, BuildFailed, NeedsGpu
from ..native.commands.targets import users_own
from ..notebook import size
from ..registry import registry
from .eager_calls import EagerCall, Symbol, eager_calls, mutated_state, open_sizes, restored
from .export import (
    Dynamic,
    Exportable,
    Exported,
    export,
    indented,
    read_dynamic,
    read_exportable,
)
from .fresh import write_trace
from .package_record import (
    Package,
    PackagedInput,
    ReportRow,
    kernels_of,
    needed_at_run_time,
    ops_of,
)
from .verify import (
    Verification,
    in_fresh_process,
    refuse_while_verifying,
    verify,
    workplace,
)


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
    place = _read_path(Path(path))
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
        verification = verify(built, calls, needed, rtol=rtol, atol=atol, training=training)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(built, place)
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
            _write_traces, exportable, exported.program, calls[0], dynamic=bool(symbols)
        ),
    )


def _read_path(place: Path) -> Path:
    """The package's path; AOTInductor requires the suffix."""
    if place.suffix != ".pt2":
        raise BadOption(
            f"a package's name must end in .pt2, got {str(place)!r}",
            fix=f"{place.with_suffix('.pt2')}",
        )
    # Checked now, because compiling may take minutes.
    above = next(folder for folder in place.absolute().parents if folder.exists())
    if place.is_dir() or not above.is_dir() or not os.access(above, os.W_OK):
        raise BadOption(
            f"{place} cannot be written",
            found=f"{place if place.is_dir() else above}",
            fix="choose a file in a folder that you can write to",
        )
    return place


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
    exportable: Exportable, program: Any, configs: Mapping[str, Any] | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Inductor's configs for this compilation, and why they are not the default."""
    mutated, chosen = mutated_state(program, exportable.module), dict(configs or {})
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
        lines = [line for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
        raise BuildFailed(
            f"{exportable.title} was exported, but AOTInductor cannot compile it",
            found=indented(lines[:8]),
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
    weight, load = path.stat().st_size, verification.load_seconds
    without = ", without importing opforge" if verification.without_opforge else ""
    launch = f"{static_launch} ({_compat.aoti.STATIC_LAUNCH})"
    return (
        ReportRow("export", exported.seconds, f"{exported.seconds:.1f} s, {way}"),
        ReportRow("compile", compile_seconds, f"{compile_seconds:.1f} s"),
        ReportRow("static launch", static_launch, launch),
        ReportRow("size", weight, size(weight)),
        ReportRow("load", load, f"{load:.2f} s in a fresh process{without}"),
        *(ReportRow("dynamic", s.label, f"{s.label} from {s.range}") for s in symbols),
        *(
            ReportRow("verified", error, f"{label}: max error {error:.3g}")
            for label, error in verification.calls
        ),
    )


def _inputs(call: EagerCall, exportable: Exportable) -> tuple[PackagedInput, ...]:
    names = [path for path, v in exportable.by_path.items() if isinstance(v, torch.Tensor)]
    return tuple(
        PackagedInput(name, str(t.dtype).removeprefix("torch."), tuple(t.shape), str(t.device))
        for name, t in zip(names, call.inputs, strict=True)
    )


def _write_traces(  # noqa: PLR0917  # what a package keeps, then what its user gives
    exportable: Exportable,
    program: Any,
    call: EagerCall,
    package: Package,
    directory: Path,
    repeat: int,
    *,
    dynamic: bool,
) -> tuple[Path, Path]:
    """Chrome traces of the compiled model and of the package."""
    directory.mkdir(parents=True, exist_ok=True)
    compiled, packaged = directory / "compiled.json", directory / "package.json"
    model = torch.compile(exportable.module, dynamic=dynamic or None)
    with torch.no_grad(), restored(mutated_state(program, exportable.module).values()):
        run = functools.partial(model, *exportable.args, **exportable.kwargs)
        write_trace(run, str(compiled), repeat)
    # In a fresh process, because a package that crashes takes its process down.
    with workplace() as folder:
        in_fresh_process(
            package.path, [call], package.needed, folder, trace=packaged, repeat=repeat
        )
    return compiled, packaged


def read_model(value: Any, target: str) -> Any:
    """A model or an op; a class or function without parameters is called to make the model."""
    is_op = registry.find(value) is not None or _compat.aoti.overload_behind(value) is not None
    if isinstance(value, torch.nn.Module) or is_op:
        return value
    with users_own(f"{target}()"):
        model = value() if callable(value) else None
    if isinstance(model, torch.nn.Module):
        return model
    raise BadSignature(
        f"{target} is neither a model nor an operator",
        found=f"a {type(value).__name__}",
        fix="name a torch.nn.Module, an op, or a class or function that makes a module when called",
    )


_DIMENSION = re.compile(r"(.+):(\d+)=([^:]+)(?::(\d+):(\d+))?")


def read_dynamic_texts(texts: tuple[str, ...]) -> dict[str, dict[int, Any]]:
    """`x:0=batch`, `x:0=batch:1:1024` -> `{"x": {0: ("batch", 1, 1024)}}`."""
    dynamic: dict[str, dict[int, Any]] = {}
    for text in texts:
        match = _DIMENSION.fullmatch(text)
        if match is None:
            raise BadOption(
                f"--dynamic {text} does not name a dimension",
                fix="x:0=batch, or with a range: x:0=batch:1:1024",
            )
        path, index, name, least, most = match.groups()
        dim = name if least is None else (name, int(least), int(most))
        dynamic.setdefault(path, {})[int(index)] = dim
    return dynamic
