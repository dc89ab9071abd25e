"""Bad input reads the same in C, in C++ and in Python; and a bad build in CMake."""

import re
import subprocess
from pathlib import Path

import pytest
import torch

from opforge import native
from opforge.errors import NativeCallFailed
from opforge.native.artifacts.toolchain import compile_library
from opforge.native.ir.abi import STATUS_NAMES
from support.native import hand_made
from support.standin.driver import AMD, NVIDIA, build_standin

PROGRAM = Path(__file__).with_name("same_texts.cpp")
CXX17 = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic")
on_nvidia = pytest.mark.parametrize("vendor", [NVIDIA], indirect=True, ids=["nvidia"])
X, Y, OUT = torch.zeros(4, 2), torch.zeros(4, 2), torch.zeros(4, 2)

# In the program's order.
CALLS = [
    ("add", (X.double(), Y), {"out": OUT}),
    ("add", (torch.zeros(2, 2, 2), Y), {"out": OUT}),
    ("add", (torch.zeros((1,) * 9), Y), {"out": OUT}),
    ("add", (X, torch.zeros(4, 3)), {"out": OUT}),
    ("add", (X, torch.zeros(2, 4).t()), {"out": OUT}),
    ("add", (X, torch.zeros(4)), {"out": OUT}),
    ("add", (X, Y), {"out": torch.zeros(2, 4)}),
    ("add", (X, Y), {"out": OUT.int()}),
    ("add", (Y, torch.zeros(4, 5)), {}),
    ("matmul", (torch.zeros(4, 5000), torch.zeros(5000, 4)), {"out": torch.zeros(4, 4)}),
    ("copy", (X,), {"out": OUT, "implementation": 7}),
    ("copy", (torch.zeros(2, 4).t(),), {"out": OUT, "implementation": 0}),
    ("copy", (torch.zeros(4, 3),), {"out": torch.zeros(4, 3), "implementation": "copy_flat"}),
    ("copy", (torch.zeros(65, 2),), {"out": torch.zeros(65, 2), "implementation": 1}),
    ("load", (7,), {}),
]


@pytest.fixture
def library(make):
    parts = (hand_made.add(), hand_made.matmul(), hand_made.copying())
    return make(hand_made.library(*parts))


def compiled(folder, tmp_path):
    compile_library(folder, "demo", static=True, flags=("-O0",))
    binary = tmp_path / "main"
    linked = [str(folder / "lib" / "libdemo.a"), "-ldl", "-lpthread", "-lm", "-o", str(binary)]
    command = ["g++", *CXX17, f"-I{folder / 'include'}", str(PROGRAM), *linked]
    subprocess.run(command, check=True)
    return str(binary)


def of_program(binary, vendor):
    """(status, text) of each call, through C and through C++."""
    environment = {"LD_LIBRARY_PATH": str(build_standin(vendor).parent)}
    command = [binary, str(vendor.device_type)]
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    found = re.findall(r"(C|C\+\+) (\d) (.*?)\n=====\n", done.stdout.decode(), re.DOTALL)
    said = [(STATUS_NAMES[int(status)], text) for _, status, text in found]
    assert [name for name, _, _ in found] == ["C", "C++"] * len(CALLS)
    return said[::2], said[1::2]


def of_python(folder):
    demo = native.open(folder, host_memory=True)
    for name, arguments, named in CALLS:
        with pytest.raises(NativeCallFailed) as failed:
            getattr(demo, name)(*arguments, **named)
        yield failed.value.status, str(failed.value)


@on_nvidia
def test_bad_input_reads_the_same_in_every_language_and_on_every_gpu(library, tmp_path):
    binary = compiled(library.folder, tmp_path)
    in_c, in_cplusplus = of_program(binary, NVIDIA)
    assert in_cplusplus == in_c
    assert list(of_python(library.folder)) == in_c
    assert of_program(binary, AMD) == (in_c, in_c)
    assert len(set(in_c)) == len(CALLS)
    assert {status for status, _ in in_c} == {"INVALID_ARGUMENT", "UNCOVERED"}
    assert in_c[3] == (
        "INVALID_ARGUMENT", "demo_add: y: size 3 in dimension 1, expected 2 as in x (n)"
    )  # fmt: skip


@on_nvidia
def test_bad_memory_reads_the_same_in_c_and_python(library):
    with pytest.raises(NativeCallFailed) as failed:
        native.open(library.folder).add(X, Y, out=OUT)
    said = library.function("last_error")().decode()
    assert str(failed.value) == said
    assert said.startswith("demo_add: x: is on the CPU; the library runs on CUDA or ROCm")
