"""Writes Chrome traces of the compiled model and of the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .eager_calls import EagerCall, unchanged
from .exportable import Exportable
from .fresh import write_trace
from .package_record import Package
from .process import workplace
from .verify import Tolerance, in_fresh_process


@dataclass(frozen=True)
class Profiler:
    """Keeps what profiling needs: the model, its exported program, and one call."""

    exportable: Exportable
    program: Any
    call: EagerCall
    dynamic: bool

    def __call__(self, package: Package, directory: Path, repeat: int) -> tuple[Path, Path]:
        directory.mkdir(parents=True, exist_ok=True)
        compiled = directory / "compiled.json"
        packaged = directory / "package.json"
        model = torch.compile(self.exportable.module, dynamic=self.dynamic or None)

        def call() -> None:
            model(*self.exportable.args, **self.exportable.kwargs)

        with torch.no_grad(), unchanged(self.program, self.exportable.module):
            write_trace(call, str(compiled), repeat)
        # In a fresh process, because a package that crashes takes its process down.
        with workplace() as folder:
            in_fresh_process(
                package.path,
                [self.call],
                package.needed,
                Tolerance(),
                folder,
                trace=packaged,
                repeat=repeat,
            )
        return compiled, packaged
