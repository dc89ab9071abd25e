"""A package against eager, in a fresh process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import _compat
from ..errors import OpNotImportable, PackageMismatch, PackageRefused
from .cases import Case
from .contents import PackagedOp
from .process import Outcome, run_fresh

# How far a result may be off, as a share of its own size plus its tensor's mean size. About twice
# the rounding of a sum of a thousand products in another order; whole numbers must be equal.
TOLERANCES = {
    "torch.float64": 1e-9,
    "torch.complex128": 1e-9,
    "torch.float32": 1e-4,
    "torch.complex64": 1e-4,
    "torch.float16": 4e-3,
    "torch.bfloat16": 2e-2,
    "torch.float8_e4m3fn": 0.13,
    "torch.float8_e4m3fnuz": 0.13,
    "torch.float8_e5m2": 0.26,
    "torch.float8_e5m2fnuz": 0.26,
}


@dataclass(frozen=True)
class Verified:
    """A call whose results agree with eager's."""

    label: str
    max_error: float


@dataclass(frozen=True)
class Verification:
    """What the fresh process found."""

    load_seconds: float
    cases: tuple[Verified, ...]
    without_opforge: bool
    preload: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tolerance:
    """What the user allows; None is what the dtype allows."""

    rtol: float | None = None
    atol: float | None = None


def verify(
    package: Path,
    cases: Sequence[Case],
    needed: Sequence[PackagedOp],
    tolerance: Tolerance,
    *,
    training: bool = False,
) -> Verification:
    """Load and run the package on every case; raises where it is not what eager computes."""
    outcome = in_fresh_process(package, cases, needed, tolerance, package.parent)
    found = outcome.result
    _raise_mismatch(package, found["cases"], training=training)
    return Verification(
        load_seconds=found["load_seconds"],
        cases=tuple(Verified(c["label"], c["error"]) for c in found["cases"]),
        without_opforge=not found["opforge"],
        preload=outcome.preload,
        notes=outcome.notes,
    )


def in_fresh_process(
    package: Path,
    cases: Sequence[Case],
    needed: Sequence[PackagedOp],
    tolerance: Tolerance,
    folder: Path,
    *,
    trace: Path | None = None,
    repeat: int = 10,
) -> Outcome:
    """The package loaded and called in a process of its own; `folder` takes what it is told."""
    _refuse_local(needed)
    modules = {(op.module, op.file): None for op in needed if op.module}
    # An op that Python did not define came with a library, and nothing tells with which.
    foreign = any(not op.module for op in needed)
    saved = folder / "cases.pt"
    torch.save(
        [
            {"label": c.label, "inputs": c.inputs, "outputs": c.outputs, "after": c.after}
            for c in cases
        ],
        saved,
    )
    spec: dict[str, Any] = {
        "sys_path": sys.path,
        "loader": _compat.aoti.LOADER,
        "package": str(package.absolute()),
        "cases": str(saved),
        "modules": [{"module": m, "file": f} for m, f in modules],
        "libraries": _compat.aoti.loaded_libraries() if foreign else (),
        "tolerances": TOLERANCES,
        "rtol": tolerance.rtol,
        "atol": tolerance.atol,
        "trace": str(trace.absolute()) if trace else "",
        "repeat": repeat,
    }
    outcome = run_fresh(spec, folder)
    _raise_refusal(outcome.result, needed)
    return outcome


def _refuse_local(needed: Sequence[PackagedOp]) -> None:
    for op in needed:
        if op.local:
            raise OpNotImportable(
                f"the package calls {op.name}, which no other process can import: it is defined "
                "inside a function",
                found=op.why,
                fix="define the op at the top level of a module",
                location=op.location,
            )


def _raise_refusal(found: dict[str, Any], needed: Sequence[PackagedOp]) -> None:
    if "error" not in found:
        return
    names = ", ".join(f"{op.name} ({op.location or 'not defined in Python'})" for op in needed)
    if found["stage"] == "import":
        raise OpNotImportable(
            f"the ops that the package calls cannot be imported in a fresh process: {names}",
            found=_indented(found["traceback"]),
            fix="make the module importable by itself: no arguments, no state of this process",
        )
    if "Could not find schema" in found["error"]:
        raise OpNotImportable(
            "importing their modules does not define all the ops that the package calls",
            found=f"{found['error']}; imported for {names or 'none'}",
            fix="define the op when its module is imported, not under `if __name__ == ...`",
        )
    doing = {"load": "loaded", "run": "called", "trace": "traced"}[found["stage"]]
    raise PackageRefused(
        f"the package cannot be {doing} in a fresh process",
        found=_indented(found["error"]),
        fix="if a size is refused, narrow the range in dynamic"
        if found["stage"] == "run"
        else None,
    )


def _raise_mismatch(package: Path, cases: Sequence[dict[str, Any]], *, training: bool) -> None:
    wrong = [c for c in cases if c["wrong"]]
    if not wrong:
        return
    told = [f"{c['label']}: {c['wrong'] or 'agrees'}" for c in cases]
    fix = "to accept the difference, pass rtol=... and atol=..."
    if training:
        fix = f"if the model has dropout, which is random, call model.eval() first; {fix}"
    raise PackageMismatch(
        f"{package.name} disagrees with eager, so it was not kept",
        found=_indented("\n".join(told)),
        fix=fix,
    )


def _indented(text: str) -> str:
    return "\n         ".join(text.strip().splitlines())
