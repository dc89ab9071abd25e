"""Chrome traces of the compiled model and of the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .cases import Case, unchanged
from .fresh import write_trace
from .process import workplace
from .record import Package
from .subject import Subject
from .verify import Tolerance, in_fresh_process


@dataclass(frozen=True)
class Tracer:
    """Keeps what tracing needs: the model, what was exported of it, and one call."""

    subject: Subject
    program: Any
    case: Case
    dynamic: bool

    def __call__(self, package: Package, directory: Path, repeat: int) -> tuple[Path, Path]:
        directory.mkdir(parents=True, exist_ok=True)
        compiled = directory / "compiled.json"
        packaged = directory / "package.json"
        model = torch.compile(self.subject.module, dynamic=self.dynamic or None)

        def call() -> None:
            model(*self.subject.args, **self.subject.kwargs)

        with torch.no_grad(), unchanged(self.program, self.subject.module):
            write_trace(call, str(compiled), repeat)
        # In a process of its own, because a package that crashes takes its process down.
        with workplace() as folder:
            in_fresh_process(
                package.path,
                [self.case],
                package.needed,
                Tolerance(),
                folder,
                trace=packaged,
                repeat=repeat,
            )
        return compiled, packaged
