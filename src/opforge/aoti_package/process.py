"""Runs the fresh process, and reports it if it crashes."""

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import environment
from ..errors import BuildFailed
from ..libstdcxx import LIBRARY, system_libstdcxx
from .failure import indented

SCRIPT = Path(__file__).with_name("fresh.py")


@dataclass(frozen=True)
class FreshRun:
    """What the process found; `preload` is the library that it needed in LD_PRELOAD, if any."""

    result: dict[str, Any]
    preload: str = ""
    notes: tuple[str, ...] = ()


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
    try:
        yield folder
    except BaseException as error:
        if not isinstance(error, BuildFailed) or str(folder) not in str(error):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    else:
        shutil.rmtree(folder, ignore_errors=True)


def run_fresh(spec: Mapping[str, Any], folder: Path, script: Path = SCRIPT) -> FreshRun:
    """Run the script on a spec, and again with the system's libstdc++ if a signal kills it."""
    file, result = folder / "spec.json", folder / "result.json"
    file.write_text(json.dumps({**spec, "result": str(result)}))
    command = [sys.executable, str(script), str(file)]
    first = _run(command, {})
    if first.returncode >= 0:
        return FreshRun(_read(first, result, command))
    preload = system_libstdcxx()
    died = f"the process that loads the package was killed by {_signal_name(first.returncode)}"
    if preload is None:
        raise BuildFailed(
            died,
            found=_last_lines(first.stderr),
            fix=f"no {LIBRARY} was found to preload; if g++ links libstdc++ statically, "
            f"install the shared one and run: LD_PRELOAD={LIBRARY} {shlex.join(command)}",
        )
    before = environment.LD_PRELOAD.get()
    second = _run(command, {"LD_PRELOAD": f"{preload}:{before}" if before else preload})
    if second.returncode < 0:
        raise BuildFailed(
            f"{died}; with LD_PRELOAD={preload} it was killed by {_signal_name(second.returncode)}",
            found=_last_lines(second.stderr or first.stderr),
            fix=f"to reproduce it: LD_PRELOAD={preload} {shlex.join(command)}",
        )
    note = (
        f"{died}, but ran with LD_PRELOAD={preload}, which is needed if g++ links libstdc++ "
        "statically. Every process that loads this package needs the same"
    )
    return FreshRun(_read(second, result, command), preload, (note,))


def _run(command: list[str], extra: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603  # this interpreter and opforge's own script
        command, capture_output=True, text=True, check=False, env={**os.environ, **extra}
    )


def _read(
    done: subprocess.CompletedProcess[str], result: Path, command: list[str]
) -> dict[str, Any]:
    if done.returncode == 0 and result.exists():
        found: dict[str, Any] = json.loads(result.read_text())
        return found
    raise BuildFailed(
        f"the process that loads the package exited with status {done.returncode}",
        found=_last_lines(done.stderr),
        fix=f"to reproduce it: {shlex.join(command)}",
    )


def _signal_name(returncode: int) -> str:
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


def _last_lines(text: str) -> str:
    return indented(text.strip().splitlines()[-6:]) or "nothing on stderr"
