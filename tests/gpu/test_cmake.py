"""The CMake examples on a GPU: configured, built and run for real."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import opforge
from support.gpu.arch import arch_name
from support.processes import ROOT, environment

pytestmark = pytest.mark.skipif(
    not (shutil.which("cmake") and shutil.which("ninja")), reason="no CMake or ninja here"
)

EXAMPLES = ROOT / "examples"


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


def configure(source, build, *options):
    package = Path(opforge.__file__).parent / "cmake"
    run(
        "cmake", "-G", "Ninja", "-S", source, "-B", build, "-DWITH_NVIDIA=ON", "-DWITH_TRITON=ON",
        f"-Dopforge_DIR={package}", f"-DOPFORGE_PYTHON_EXECUTABLE={sys.executable}", *options,
    )  # fmt: skip


def test_the_example_computes_on_the_gpu_what_it_computes_on_the_cpu(tmp_path):
    configure(EXAMPLES / "cmake_project", tmp_path, f"-DENGINE_GPU_ARCHS={arch_name()}")
    run("cmake", "--build", tmp_path)
    assert "100003 numbers" in run(tmp_path / "engine", "--gpu")


def test_generated_slots_compute_what_the_cpu_does_and_a_new_operator_has_one(tmp_path):
    source, build = tmp_path / "source", tmp_path / "build"
    ignored = shutil.ignore_patterns("__pycache__", "build")
    shutil.copytree(EXAMPLES / "template_dispatch", source, ignore=ignored)
    configure(source, build, f"-DGPU_ARCHS={arch_name()}", "-DCMAKE_CXX_FLAGS=-Werror")
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
