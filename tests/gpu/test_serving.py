"""A program that is recorded, built and served on a GPU, without an edit."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support import served_program
from support.processes import environment

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
]

PROGRAM = Path(served_program.__file__)
# Makes every way to compile raise, once Triton is there.
NO_JIT = """
import subprocess, triton, triton.compiler.compiler

def refuse(*args, **kwargs):
    raise AssertionError("something was compiled")

triton.compile = triton.compiler.compiler.compile = refuse
subprocess.Popen.__init__ = refuse
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def opforge(*arguments, **variables):
    done = subprocess.run(
        [sys.executable, "-m", "opforge", *map(str, arguments)],
        env=environment(**variables), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    launches = folder / "launches.json"
    opforge("record", "-o", launches, "--", sys.executable, PROGRAM, "1000", "4096")
    opforge("build", launches, "--arch", "sm_80", "--arch", "sm_90", "-o", folder / "kernels")
    return folder / "kernels"


def test_other_sizes_are_served_to_the_bit_and_nothing_is_compiled(kernels, tmp_path):
    sizes = ("1000", "4096", "4097", "33", "16384")
    jit = subprocess.run(
        [sys.executable, str(PROGRAM), *sizes],
        env=environment(), capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    cache = tmp_path / "no-cache"
    cache.touch()
    cache.chmod(0o444)
    served = opforge(
        "serve", "--strict", kernels, "--", sys.executable, "-c", NO_JIT, PROGRAM, *sizes,
        TRITON_CACHE_DIR=str(cache / "below-a-file"),
    )  # fmt: skip
    assert served == jit
