"""Writes Chrome traces of the compiled model and of the package."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from .eager_calls import EagerCall, mutated_state, restored
from .exportable import Exportable
from .fresh import write_trace
from .package_record import Package
from .process import workplace
from .verify import Tolerance, in_fresh_process


def write_traces(  # noqa: PLR0917  # what a package keeps, then what its user gives
    exportable: Exportable,
    program: Any,
    call: EagerCall,
    package: Package,
    directory: Path,
    repeat: int,
    *,
    dynamic: bool,
) -> tuple[Path, Path]:
    directory.mkdir(parents=True, exist_ok=True)
    compiled, packaged = directory / "compiled.json", directory / "package.json"
    model = torch.compile(exportable.module, dynamic=dynamic or None)
    state = mutated_state(program, exportable.module)
    with torch.no_grad(), restored(state.values()):
        run = functools.partial(model, *exportable.args, **exportable.kwargs)
        write_trace(run, str(compiled), repeat)
    # In a fresh process, because a package that crashes takes its process down.
    with workplace() as folder:
        in_fresh_process(
            package.path,
            [call],
            package.needed,
            Tolerance(),
            folder,
            trace=packaged,
            repeat=repeat,
        )
    return compiled, packaged
