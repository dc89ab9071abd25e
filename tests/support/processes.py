"""Processes that tests start: what they can import, and what they print."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment(*folders, **variables):
    """This process's variables, with a path to opforge, to `support` and to `folders`."""
    # Not sys.path: a module `ops` that another test imports would hide a tree of that name.
    places = [*folders, ROOT / "src", ROOT / "tests", os.environ.get("PYTHONPATH")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(str(p) for p in places if p)} | variables


def run_python(code, **variables):
    """The output of a fresh process that runs a text, or a file if it ends in `.py`."""
    result = subprocess.run(
        [sys.executable, code] if str(code).endswith(".py") else [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=environment(**variables),
    )
    assert result.returncode == 0, result.stderr
    return result.stdout
