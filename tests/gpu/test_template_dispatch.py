"""The example of templates that dispatch to generated operators, built and run on a GPU."""

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
EXAMPLE = ROOT / "examples" / "template_dispatch"


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


def test_generated_slots_compute_what_the_cpu_does_and_a_new_operator_has_one(tmp_path):
    source, build = tmp_path / "source", tmp_path / "build"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__", "build"))
    major, minor = torch.cuda.get_device_capability()
    run(
        "cmake", "-G", "Ninja", "-S", source, "-B", build, "-DWITH_NVIDIA=ON",
        "-DWITH_TRITON=ON", f"-DGPU_ARCHS={major}{minor}", "-DCMAKE_CXX_FLAGS=-Werror",
        f"-Dopforge_DIR={PACKAGE / 'cmake'}", f"-DOPFORGE_PYTHON_EXECUTABLE={sys.executable}",
    )  # fmt: skip
    run("cmake", "--build", build)
    assert run(build / "dispatch", "compare").splitlines() == [
        "add, slot 8: 48 computed, 0 refused, 0 wrong",
        "add, slot 9: 32 computed, 16 refused, 0 wrong",
        "add, slot 10: 48 computed, 0 refused, 0 wrong",
        "silu, slot 8: 48 computed, 0 refused, 0 wrong",
        "silu, slot 9: 48 computed, 0 refused, 0 wrong",
    ]
    shutil.copytree(ROOT / "tests" / "cmake_projects" / "mul", source / "ops" / "mul")
    run("cmake", "--build", build)
    assert run(build / "dispatch", "call", "mul", "8", "2.5", "4") == "10\n"
