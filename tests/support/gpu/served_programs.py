"""Programs that are recorded and served from the command line."""

import subprocess
import sys
from pathlib import Path

import torch

from support import wild
from support.processes import environment

_RUN = Path(wild.__file__).with_name("run.py")
# Makes every way to compile raise, once Triton is there, and then runs a program.
NO_JIT = """
import subprocess, triton, triton.compiler.compiler

def refuse(*args, **kwargs):
    raise AssertionError("something was compiled")

triton.compile = triton.compiler.compiler.compile = refuse
subprocess.Popen.__init__ = refuse
import os, runpy, sys
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(*command, **variables):
    done = subprocess.run(
        [*map(str, command)], env=environment(**variables), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def opforge(*arguments, **variables):
    return run(sys.executable, "-m", "opforge", *arguments, **variables)


def results(program, sizes, file, *, cache, under=(), python=()):
    """What `tests/support/wild/run.py` keeps of a program, under a command of opforge or alone."""
    command = (sys.executable, *python, _RUN, program, file, *sizes)
    variables = {
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "FLAGGEMS_CACHE_DIR": str(cache / "gems"),
        # It would start nvidia-smi to find out.
        "GEMS_VENDOR": "nvidia",
    }
    if under:
        opforge(*under, "--", *command, **variables)
    else:
        run(*command, **variables)
    return torch.load(file)
