"""`opforge.package`: orchestrates export, compilation and verification; what its command reads."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .. import _compat
from ..errors import BadOption, BuildFailed
from ..native.targets import users_own
from ..notebook import size
from .export import (
    Dynamic,
    Exportable,
    export,
    indented,
    is_operator,
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
    EagerCall,
    eager_calls,
    in_fresh_process,
    mutated_state,
    open_sizes,
    refuse_while_verifying,
    restored,
    verify,
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
    place = Path(path)
    if place.suffix != ".pt2":
        raise BadOption(
            f"a package's name must end in .pt2, got {str(place)!r}",
            fix=f"{place.with_suffix('.pt2')}",
        )
    # Now, because compiling may take minutes.
    place.parent.mkdir(parents=True, exist_ok=True)
    tolerance = None if rtol is None and atol is None else (rtol or 0.0, atol or 0.0)
    exportable = read_exportable(model, args, kwargs)
    title, dims = exportable.title, read_dynamic(dynamic, exportable)
    exported = export(exportable, dims, strict=strict)
    program, reasons = exported.program, [*exported.failures]
    report = [
        ReportRow(
            "export",
            exported.seconds,
            f"{exported.seconds:.1f} s, {'strict' if exported.strict else 'non-strict'}",
        )
    ]
    symbols = open_sizes(program, exportable, dims)
    with _compiling(title):
        state = mutated_state(program, exportable.module)
    calls = eager_calls(program, exportable, symbols, also, state)
    configs, folding = dict(inductor_configs or {}), _compat.aoti.CONSTANT_FOLDING
    if state and folding not in configs:
        # pytorch#165444: a buffer of one element is folded into the code, and its changes are lost.
        configs[folding] = False
        reasons.append(f"{folding} is off, because a call changes {', '.join(state)}")
    with tempfile.TemporaryDirectory(prefix="opforge-package-") as temporary:
        folder = Path(temporary)
        # Built under its final name, which the archive repeats inside; moved once it is verified.
        built = folder / place.name
        started = time.perf_counter()
        with _compiling(title):
            launch = _compat.aoti.compile_package(program, built, configs)
        seconds, weight = time.perf_counter() - started, built.stat().st_size
        report += [
            ReportRow("compile", seconds, f"{seconds:.1f} s"),
            ReportRow("static launch", launch, f"{launch} ({_compat.aoti.STATIC_LAUNCH})"),
            ReportRow("size", weight, size(weight)),
        ]
        ops, kernels = ops_of(program, built), kernels_of(program, built)
        training, needed = exportable.module.training, needed_at_run_time(ops)
        verification = verify(built, calls, needed, tolerance=tolerance, training=training)
        shutil.move(built, place)
    load = verification.load_seconds
    without = ", without importing opforge" if verification.without_opforge else ""
    report += [
        ReportRow("load", load, f"{load:.2f} s in a fresh process{without}"),
        *(
            ReportRow("dynamic", s.label, f"{s.label} from {s.least} to {s.most or 'any'}")
            for s in symbols
        ),
        *(
            ReportRow("verified", error, f"{label}: max error {error:.3g}")
            for label, error in verification.calls
        ),
    ]
    return Package(
        path=place,
        title=title,
        strict=exported.strict,
        reasons=(*reasons, *verification.notes),
        report=tuple(report),
        ops=ops,
        kernels=kernels,
        inputs=tuple(
            PackagedInput(path, str(t.dtype).removeprefix("torch."), tuple(t.shape), str(t.device))
            for path, t in exportable.by_path.items()
            if isinstance(t, torch.Tensor)
        ),
        preload=verification.preload,
        profiler=functools.partial(
            _write_traces, exportable, state, calls[0], dynamic=bool(symbols)
        ),
    )


@contextlib.contextmanager
def _compiling(title: str) -> Iterator[None]:
    """What torch's compiler raises, as an error of the build."""
    try:
        yield
    except Exception as error:
        # One line may hold pages of torch's own state.
        lines = [line[:500] for line in f"{type(error).__name__}: {error}".splitlines()]
        raise BuildFailed(
            f"{title} was exported, but AOTInductor cannot compile it",
            found=indented([line for line in lines if line.strip()][:8]),
            fix="`opforge doctor` shows what this machine lacks; `__cause__` of this exception has "
            "the full error",
        ) from error


def _write_traces(  # noqa: PLR0917  # what a package keeps, then what its user gives
    exportable: Exportable,
    state: Mapping[str, torch.Tensor],
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
    with torch.no_grad(), restored(state.values()):
        run = functools.partial(model, *exportable.args, **exportable.kwargs)
        write_trace(run, str(compiled), repeat)
    # In a fresh process, because a package that crashes takes its process down.
    with tempfile.TemporaryDirectory() as folder:
        in_fresh_process(
            package.path, [call], package.needed, Path(folder), trace=packaged, repeat=repeat
        )
    return compiled, packaged


def read_model(value: Any, target: str) -> Any:
    """A model or an op; a class or function without parameters is called to make the model."""
    if isinstance(value, torch.nn.Module) or is_operator(value) or not callable(value):
        return value
    with users_own(f"{target}()"):
        return value()


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
