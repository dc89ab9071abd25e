"""Processes that tests start: what they can import, and what they print."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python():
    """For children that may start with torch imported, which saves them seconds."""
    return os.environ.get("OPFORGE_TEST_PYTHON", sys.executable)


def provide_python(folder, session):
    """A Python that has torch imported, for as long as the process `session` runs."""
    folder.mkdir(exist_ok=True)
    script = folder / "python"
    program = [sys.executable, "-IS", str(Path(__file__).with_name("preloaded.py"))]
    script.write_text(f'#!/bin/sh\nexec {shlex.join([*program, str(folder), str(session)])} "$@"\n')
    script.chmod(0o755)
    return str(script)


def environment(*folders, **variables):
    """This process's variables, with a path to opforge, to `support` and to `folders`."""
    # Not sys.path: a module `ops` that another test imports would hide a tree of that name.
    places = [*folders, ROOT / "src", ROOT / "tests", os.environ.get("PYTHONPATH")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(str(p) for p in places if p)} | variables


def run_python(code, *, program=None, **variables):
    """The output of a process that runs a text, or a file if it ends in `.py`."""
    option = [] if str(code).endswith(".py") else ["-c"]
    result = subprocess.run(
        [program or python(), *option, code],
        capture_output=True,
        text=True,
        check=False,
        env=environment(**variables),
    )
    assert result.returncode == 0, result.stderr
    return result.stdout
