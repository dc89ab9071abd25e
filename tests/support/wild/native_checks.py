"""Runs native_results.py: traces in one process, and runs in another."""

import json
import subprocess
import sys
from pathlib import Path

from support.processes import environment

PROGRAM = Path(__file__).with_name("native_results.py")


def results(package, folder, device):
    """The results that differ from eager torch's, and how many were compared."""
    recipes = folder / "recipes"
    _run("plan", recipes, package, TRITON_INTERPRET="0")
    _run("run", recipes, device, TRITON_INTERPRET="1" if device == "cpu" else "0")
    said = json.loads(recipes.with_suffix(".json").read_text("utf-8"))
    return said["differing"], said["count"]


def _run(*arguments, **variables):
    command = [sys.executable, "-W", "ignore", str(PROGRAM), *map(str, arguments)]
    # FlagGems looks for a GPU when it is imported, unless it is told the vendor.
    variables = environment(GEMS_VENDOR="nvidia", **variables)
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
