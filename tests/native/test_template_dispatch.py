"""The example of templates that dispatch to generated operators, on the stand-in driver.

Its tests change one copy of it, and come in order: it is built once.
"""

import shutil
import subprocess

import pytest

from support.native.cmake import CMAKE_DIR, Project, environment_of
from support.processes import ROOT, environment, python
from support.standin.driver import AMD, NVIDIA

EXAMPLE = ROOT / "examples" / "template_dispatch"
MUL = ROOT / "tests" / "cmake_projects" / "mul"

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("cmake", "ninja"))), reason="no CMake or ninja here"
)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """A copy of the example, and where it is built."""
    folder = tmp_path_factory.mktemp("dispatch")
    ignored = shutil.ignore_patterns("__pycache__", "build")
    shutil.copytree(EXAMPLE, folder / "source", ignore=ignored)
    given = [
        "-DCMAKE_CXX_FLAGS=-Werror",
        f"-Dopforge_DIR={CMAKE_DIR}",
        f"-DOPFORGE_PYTHON_EXECUTABLE={python()}",
    ]
    variables = environment_of(folder / "cache")
    return Project(folder / "source", folder / "build", variables, arguments=given)


@pytest.fixture(scope="module")
def built(example):
    on = ["-DWITH_NVIDIA=ON", "-DWITH_AMD=ON", "-DWITH_TRITON=ON"]
    on.append("-DGPU_ARCHS=80;gfx942")
    assert "2 operators" in example.configure(*on)
    example.make()
    return example


def run(project, vendor, *arguments):
    """With kernels run by Triton's interpreter, in a separate process."""
    generated = project.build / "opforge.dir" / "lab_ops" / "lab_ops"
    manifest = generated / "share" / "lab_ops" / "manifest.json"
    program = [vendor.name, manifest, project.build / "dispatch", *arguments]
    done = subprocess.run(
        [python(), "-m", "support.standin.run", *program],
        env=environment(project.source, TRITON_INTERPRET="1"),
        cwd=project.build,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_without_triton_there_are_the_slots_written_by_hand(example):
    example.configure("-DOPFORGE_PYTHON_EXECUTABLE=/nowhere")
    example.make()
    assert example.run("dispatch") == "add cpu 0 gives 11 22\n"
    told = example.configure("-DWITH_TRITON=ON", fails=True)
    assert "WITH_TRITON needs WITH_NVIDIA or WITH_AMD" in told


def test_each_generated_slot_has_an_operator_behind_it(built):
    assert built.run("dispatch", "list").splitlines() == [
        "add cpu 0",
        "add gpu 8 lab_ops_add",
        "add gpu 9 add_flat",
        "add gpu 10 add",
        "silu cpu 0",
        "silu gpu 8 lab_ops_silu",
        "silu gpu 9 silu",
    ]


def test_generated_slots_compute_what_the_cpu_does(built, vendor):
    assert run(built, vendor, "compare") == [
        "add, slot 8: 48 computed, 0 refused, 0 wrong",
        # Only contiguous ones.
        "add, slot 9: 32 computed, 16 refused, 0 wrong",
        "add, slot 10: 48 computed, 0 refused, 0 wrong",
        "silu, slot 8: 48 computed, 0 refused, 0 wrong",
        "silu, slot 9: 48 computed, 0 refused, 0 wrong",
    ]


def test_a_file_that_operators_share_is_watched(built):
    (built.source / "ops" / "common.py").touch()
    assert "nothing has changed since the last build of lab_ops" in built.make()
    assert "no work to do" in built.make()


def test_a_new_operator_gets_its_slot_without_a_change_to_the_cpp(built):
    shutil.copytree(MUL, built.source / "ops" / "mul")
    assert "3 operators" in built.make()
    listed = built.run("dispatch", "list").splitlines()
    assert "mul gpu 8 lab_ops_mul" in listed
    assert "mul cpu 0" not in listed
    for vendor in (NVIDIA, AMD):
        assert run(built, vendor, "call", "mul", "8", "2.5", "4") == ["10"]
