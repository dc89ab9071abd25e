"""Native programs of public functions against eager torch, in processes of their own."""

import json
import subprocess
import sys
from pathlib import Path

from support.processes import environment
from support.wild.native_functions import loaded


def interpreted(package, folder):
    """The results that differ from eager torch's, and how many were compared."""
    recipes = folder / "recipes"
    _run("native_results.py", "plan", recipes, package, TRITON_INTERPRET="0")
    _run("native_results.py", "run", recipes, TRITON_INTERPRET="1")
    return _told(recipes.with_suffix(".json"))


def on_gpu(package, folder):
    """The same of a library that was built for this GPU."""
    _run("native_libraries.py", folder, package)
    return _told(folder / "results.json")


def unimported(package):
    """Why a package cannot be imported here, be it without opforge; empty if it can."""
    modules = {one.module for one in loaded().TABLE if one.module.partition(".")[0] == package}
    command = [sys.executable, "-W", "ignore", "-c", f"import {', '.join(sorted(modules))}"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def _told(file):
    said = json.loads(file.read_text("utf-8"))
    return said["differing"], said["count"]


def _run(program, *arguments, **variables):
    program = Path(__file__).with_name(program)
    command = [sys.executable, "-W", "ignore", str(program), *map(str, arguments)]
    # FlagGems looks for a GPU when it is imported, unless it is told the vendor.
    variables = environment(GEMS_VENDOR="nvidia", **variables)
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
