"""The C program of the examples: built with CMake, run on the stand-in or on a GPU."""

import os
import shutil
import subprocess

import pytest

from support.native.calling import BUILT, VENDOR
from support.processes import ROOT
from support.standin.interpreter import Interpreter
from support.standin.remote import serving

SOURCE = ROOT / "examples" / "native"


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not there")

    def run(generator, tool):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not there")
        folder = tmp_path_factory.mktemp("program")
        configure = ["-S", SOURCE, "-B", folder, "-G", generator, "-DCMAKE_C_FLAGS=-Werror"]
        for command in (
            ["cmake", *configure, f"-DCMAKE_PREFIX_PATH={BUILT / 'ops'}"],
            ["cmake", "--build", folder],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        return folder / "main"

    return run


def run(program, **environment):
    return subprocess.run(
        [program], env=os.environ | environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("generator", "tool"), [("Ninja", "ninja"), ("Unix Makefiles", "make")])
def test_the_program_finds_the_library_and_its_answers_are_right(ops, build, generator, tool):
    program = build(generator, tool)
    if ops.standin is None:
        done = run(program)
    else:
        with serving(Interpreter(ops.library.manifest), VENDOR) as server:
            done = run(program, **server.environment)
            assert not server.errors, server.errors[0]
            assert len(server.launches) == 4
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("largest error") == 4
    assert "refused   ops_rms_norm: weight: " in done.stdout
    assert done.stdout.endswith("all results are correct\n")


def test_the_program_says_that_there_is_no_driver(ops, build):
    if ops.standin is None:
        pytest.skip("there is one")
    done = run(build("Unix Makefiles", "make"))
    assert done.returncode == 1
    assert "neither libcuda.so.1 nor libamdhip64.so can be opened" in done.stderr
