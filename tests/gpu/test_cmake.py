"""The CMake example on a GPU: configured, built and run for real."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import opforge
from support.processes import ROOT, environment

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
    pytest.mark.skipif(
        not (shutil.which("cmake") and shutil.which("ninja")), reason="no CMake or ninja here"
    ),
]

PACKAGE = Path(opforge.__file__).parent
EXAMPLE = ROOT / "examples" / "cmake_project"


def run(*command):
    done = subprocess.run(
        [str(word) for word in command],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_example_computes_on_the_gpu_what_it_computes_on_the_cpu(tmp_path):
    major, minor = torch.cuda.get_device_capability()
    run(
        "cmake", "-G", "Ninja", "-S", EXAMPLE, "-B", tmp_path, "-DWITH_NVIDIA=ON",
        "-DWITH_TRITON=ON", f"-DENGINE_GPU_ARCHS={major}{minor}",
        f"-Dopforge_DIR={PACKAGE / 'cmake'}", f"-DOPFORGE_PYTHON_EXECUTABLE={sys.executable}",
    )  # fmt: skip
    run("cmake", "--build", tmp_path)
    assert "100003 numbers" in run(tmp_path / "engine", "--gpu")
