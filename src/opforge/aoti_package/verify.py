"""Compares a package with eager, in a fresh process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import _compat
from ..errors import BadRegistration, BuildFailed, WrongResult
from .contents import PackagedOp
from .eager_calls import EagerCall
from .failure import indented
from .process import FreshRun, run_fresh

# How far a result may be off, relative to its own size plus its tensor's mean size. About twice the
# rounding error of adding a thousand products in another order; integers must be equal.
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
    calls: tuple[Verified, ...]
    without_opforge: bool
    preload: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tolerance:
    """The user's tolerance; None stands for that of the dtype."""

    rtol: float | None = None
    atol: float | None = None


def verify(
    package: Path,
    calls: Sequence[EagerCall],
    needed: Sequence[PackagedOp],
    tolerance: Tolerance,
    *,
    training: bool = False,
) -> Verification:
    """Load the package, make every call, and raise if a result differs from eager's."""
    outcome = in_fresh_process(package, calls, needed, tolerance, package.parent)
    found = outcome.result
    _raise_mismatch(package, found["calls"], training=training)
    return Verification(
        load_seconds=found["load_seconds"],
        calls=tuple(Verified(c["label"], c["error"]) for c in found["calls"]),
        without_opforge=not found["opforge"],
        preload=outcome.preload,
        notes=outcome.notes,
    )


def in_fresh_process(
    package: Path,
    calls: Sequence[EagerCall],
    needed: Sequence[PackagedOp],
    tolerance: Tolerance,
    folder: Path,
    *,
    trace: Path | None = None,
    repeat: int = 10,
) -> FreshRun:
    """Load and call the package in a fresh process, with its input files in `folder`."""
    _refuse_local(needed)
    modules = {(op.module, op.file): None for op in needed if op.module}
    # An op that is not defined in Python came with a library, but nothing says with which one.
    foreign = any(not op.module for op in needed)
    saved = folder / "calls.pt"
    torch.save([vars(call) for call in calls], saved)
    spec: dict[str, Any] = {
        "sys_path": sys.path,
        "loader": _compat.aoti.LOADER,
        "package": str(package.absolute()),
        "calls": str(saved),
        "modules": [{"module": m, "file": f} for m, f in modules],
        "libraries": sorted(map(str, torch.ops.loaded_libraries)) if foreign else (),
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
            raise BadRegistration(
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
        raise BadRegistration(
            f"the ops that the package calls cannot be imported in a fresh process: {names}",
            found=indented(found["traceback"].strip().splitlines()),
            fix="make the module importable on its own, without arguments or this process's state",
        )
    if "Could not find schema" in found["error"]:
        raise BadRegistration(
            "importing the ops' modules does not define all the ops that the package calls",
            found=f"{found['error']}; imported for {names or 'none'}",
            fix="define the op when its module is imported, not under `if __name__ == ...`",
        )
    doing = {"load": "loaded", "run": "called", "trace": "traced"}[found["stage"]]
    narrow = "if a size is refused, narrow the range in dynamic"
    raise BuildFailed(
        f"the package cannot be {doing} in a fresh process",
        found=indented(found["error"].strip().splitlines()),
        fix=narrow if doing == "called" else None,
    )


def _raise_mismatch(package: Path, calls: Sequence[dict[str, Any]], *, training: bool) -> None:
    if not any(c["wrong"] for c in calls):
        return
    fix = "to accept the difference, pass rtol=... and atol=..."
    if training:
        fix = f"if the model has dropout, which is random, call model.eval() first; {fix}"
    raise WrongResult(
        f"{package.name} disagrees with eager, so it was not kept",
        found=indented(f"{c['label']}: {c['wrong'] or 'agrees'}" for c in calls),
        fix=fix,
    )
