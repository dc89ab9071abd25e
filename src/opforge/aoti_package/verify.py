"""Compares a package with eager, in a fresh process, which may crash."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import _compat, environment
from ..errors import BadRegistration, BuildFailed, WrongResult
from ..libstdcxx import LIBRARY, system_libstdcxx
from .eager_calls import EagerCall
from .export import indented
from .package_record import PackagedOp

SCRIPT = Path(__file__).with_name("fresh.py")

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
class Verification:
    """What the fresh process found: the largest error of each call, by its label.

    `preload` is the library that it needed in LD_PRELOAD, if any.
    """

    load_seconds: float
    calls: tuple[tuple[str, float], ...]
    without_opforge: bool
    preload: str
    notes: tuple[str, ...]


def verify(
    package: Path,
    calls: Sequence[EagerCall],
    needed: Sequence[PackagedOp],
    *,
    rtol: float | None = None,
    atol: float | None = None,
    training: bool = False,
) -> Verification:
    """Load the package, make every call, and raise if a result differs from eager's.

    Where neither `rtol` nor `atol` is given, the tolerance follows from the dtype.
    """
    result = in_fresh_process(package, calls, needed, package.parent, rtol=rtol, atol=atol)
    compared = result["calls"]
    if any(c["wrong"] for c in compared):
        fix = "to accept the difference, pass rtol=... and atol=..."
        if training:
            fix = f"if the model has dropout, which is random, call model.eval() first; {fix}"
        raise WrongResult(
            f"{package.name} disagrees with eager, so it was not kept",
            found=indented(f"{c['label']}: {c['wrong'] or 'agrees'}" for c in compared),
            fix=fix,
        )
    return Verification(
        load_seconds=result["load_seconds"],
        calls=tuple((c["label"], c["error"]) for c in compared),
        without_opforge=not result["opforge"],
        preload=result["preload"],
        notes=tuple(filter(None, [result["note"]])),
    )


def in_fresh_process(
    package: Path,
    calls: Sequence[EagerCall],
    needed: Sequence[PackagedOp],
    folder: Path,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    trace: Path | None = None,
    repeat: int = 10,
) -> dict[str, Any]:
    """Load and call the package in a fresh process, with its input files in `folder`."""
    for op in needed:
        if op.local:
            raise BadRegistration(
                f"the package calls {op.name}, which no other process can import: it is defined "
                "inside a function",
                found=op.why,
                fix="define the op at the top level of a module",
                location=op.location,
            )
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
        "rtol": rtol,
        "atol": atol,
        "trace": str(trace.absolute()) if trace else "",
        "repeat": repeat,
    }
    result = run_fresh(spec, folder)
    if "error" in result:
        raise _refusal(result, needed)
    return result


def _refusal(result: dict[str, Any], needed: Sequence[PackagedOp]) -> Exception:
    names = ", ".join(f"{op.name} ({op.location or 'not defined in Python'})" for op in needed)
    if result["stage"] == "import":
        return BadRegistration(
            f"the ops that the package calls cannot be imported in a fresh process: {names}",
            found=indented(result["traceback"].strip().splitlines()),
            fix="make the module importable on its own, without arguments or this process's state",
        )
    if "Could not find schema" in result["error"]:
        return BadRegistration(
            "importing the ops' modules does not define all the ops that the package calls",
            found=f"{result['error']}; imported for {names or 'none'}",
            fix="define the op when its module is imported, not under `if __name__ == ...`",
        )
    doing = {"load": "loaded", "run": "called", "trace": "traced"}[result["stage"]]
    return BuildFailed(
        f"the package cannot be {doing} in a fresh process",
        found=indented(result["error"].strip().splitlines()),
        fix="if a size is refused, narrow the range in dynamic" if doing == "called" else None,
    )


def refuse_while_verifying(what: str) -> None:
    """Raise in the script's own process, where a module that packages itself would never end."""
    if getattr(sys.modules["__main__"], "__file__", None) == str(SCRIPT):
        raise BuildFailed(
            f"{what} was called by a module that is only imported to verify a package",
            fix='put the call under `if __name__ == "__main__":`, '
            "so that an import defines the operators and does nothing else",
        )


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A temporary folder; kept where the error names a command that needs it."""
    folder = Path(tempfile.mkdtemp(prefix="opforge-package-"))
    keeps = False
    try:
        yield folder
    except BuildFailed as error:
        keeps = str(folder) in str(error)
        raise
    finally:
        if not keeps:
            shutil.rmtree(folder, ignore_errors=True)


def run_fresh(spec: Mapping[str, Any], folder: Path, script: Path = SCRIPT) -> dict[str, Any]:
    """Run the script on a spec, and again with the system's libstdc++ if a signal kills it."""
    file, result = folder / "spec.json", folder / "result.json"
    file.write_text(json.dumps({**spec, "result": str(result)}))
    command, preload, note = [sys.executable, str(script), str(file)], "", ""
    process = _run(command, preload)
    if process.returncode < 0:
        died = f"the process that loads the package was killed by {_signal_name(process)}"
        preload = system_libstdcxx() or ""
        if not preload:
            raise BuildFailed(
                died,
                found=_last_lines(process),
                fix=f"no {LIBRARY} was found to preload; if g++ links libstdc++ statically, "
                f"install the shared one and run: LD_PRELOAD={LIBRARY} {shlex.join(command)}",
            )
        process = _run(command, preload)
        if process.returncode < 0:
            again = _signal_name(process)
            raise BuildFailed(
                f"{died}; with LD_PRELOAD={preload} it was killed by {again}",
                found=_last_lines(process),
                fix=f"to reproduce it: LD_PRELOAD={preload} {shlex.join(command)}",
            )
        note = (
            f"{died}, but ran with LD_PRELOAD={preload}, which is needed if g++ links libstdc++ "
            "statically. Every process that loads this package needs the same"
        )
    if process.returncode:
        raise BuildFailed(
            f"the process that loads the package exited with status {process.returncode}",
            found=_last_lines(process),
            fix=f"to reproduce it: {shlex.join(command)}",
        )
    return {**json.loads(result.read_text()), "preload": preload, "note": note}


def _run(command: list[str], preload: str) -> subprocess.CompletedProcess[str]:
    libraries = ":".join(filter(None, (preload, environment.LD_PRELOAD.get())))
    variables = {**os.environ, "LD_PRELOAD": libraries} if preload else None
    return subprocess.run(  # noqa: S603  # this interpreter and opforge's own script
        command, capture_output=True, text=True, check=False, env=variables
    )


def _signal_name(process: subprocess.CompletedProcess[str]) -> str:
    return signal.Signals(-process.returncode).name


def _last_lines(process: subprocess.CompletedProcess[str]) -> str:
    return indented(process.stderr.strip().splitlines()[-6:]) or "nothing on stderr"
