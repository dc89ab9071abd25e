"""The record of a package: what was built, how it was verified, and how to use it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .. import _compat
from ..errors import BuildFailed
from ..libstdcxx import preloaded
from ..notebook import counted, html_table
from .contents import PackagedInput, PackagedKernel, PackagedOp, needed_at_run_time


@dataclass(frozen=True)
class ReportRow:
    """One row of the report: a value for programs, and its text for people."""

    name: str
    value: float | str
    text: str


@dataclass(frozen=True)
class Package:
    """An AOTInductor package that agrees with eager.

    `strict` says how it was exported, and `reasons` what failed or was missing on the way.
    """

    path: Path
    title: str
    strict: bool
    reasons: tuple[str, ...]
    report: tuple[ReportRow, ...]
    ops: tuple[PackagedOp, ...]
    kernels: tuple[PackagedKernel, ...]
    inputs: tuple[PackagedInput, ...]
    # A library that a process on this machine must preload to load the package; usually none.
    preload: str = ""
    profiler: Callable[[Package, Path, int], tuple[Path, Path]] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def needed(self) -> tuple[PackagedOp, ...]:
        """Ops that a process must have before it can load the package."""
        return needed_at_run_time(self.ops)

    def load(self) -> Any:
        """Load the package into this process; call the result like the model."""
        if self.preload and not preloaded(self.preload):
            raise BuildFailed(
                f"loading {self.path} would crash this process, as it did the one that verified it",
                found="g++ links libstdc++ statically on this machine",
                fix=f"start Python with LD_PRELOAD={self.preload}",
            )
        return _compat.aoti.load_package(self.path)

    def profile(self, directory: Any, *, repeat: int = 10) -> tuple[Path, Path]:
        """Write Chrome traces of `torch.compile(model)` and the package, and return both files."""
        assert self.profiler is not None
        return self.profiler(self, Path(directory), repeat)

    def to_json(self) -> str:
        """Everything that `str` shows, as JSON."""
        return json.dumps(
            {
                "path": str(self.path),
                "title": self.title,
                "strict": self.strict,
                "reasons": self.reasons,
                "report": [asdict(row) for row in self.report],
                "ops": [asdict(op) for op in self.ops],
                "kernels": [asdict(kernel) for kernel in self.kernels],
                "needed_at_run_time": [op.name for op in self.needed],
                "inputs": [asdict(value) for value in self.inputs],
                "preload": self.preload,
            },
            indent=2,
        )

    def __str__(self) -> str:
        rows = [(name, text.replace("\n", "\n    ")) for name, text in self._rows()]
        width = max(len(name) for name, _ in rows)
        lines = [f"{self.path}  ({self.title})"]
        return "\n".join([*lines, *(f"  {name:<{width}}  {text}" for name, text in rows)])

    def __repr__(self) -> str:
        holds = f"{counted(len(self.ops), 'operator')}, {counted(len(self.kernels), 'kernel')}"
        return f"<Package {self.path} ({self.title}): {holds}>"

    def _repr_html_(self) -> str:
        return html_table(f"{self.path} ({self.title})", (), self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        rows = [(row.name, row.text) for row in self.report]
        rows += [("op", _op_text(op)) for op in self.ops]
        rows += [("kernel", _kernel_text(kernel)) for kernel in self.kernels]
        rows += [("needed", text) for text in _needed_texts(self.needed)]
        return rows + [("note", reason) for reason in self.reasons]


def _op_text(op: PackagedOp) -> str:
    where = f" ({op.location})" if op.location else ""
    how = "seen through" if op.seen_through else "opaque"
    # `explain` gives the reason as a whole sentence, whose start would repeat `how`.
    why = op.why.removeprefix("opaque to the compiler, because ")
    return f"{op.name}{where}, {how}: {why.removeprefix('the compiler sees through it: ')}"


def _kernel_text(kernel: PackagedKernel) -> str:
    owner = f"of {kernel.op}" if kernel.op else "launched by the model itself"
    return f"{kernel.name} ({kernel.location}), {owner}"


def _needed_texts(needed: tuple[PackagedOp, ...]) -> list[str]:
    if not needed:
        return ["nothing but torch at run time"]
    return [
        f"{op.name} at run time: "
        + (f"import {op.module} ({op.file})" if op.module else "load the library that defines it")
        for op in needed
    ]
