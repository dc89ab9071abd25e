"""The C++ header: programs that include it are compiled and run on the stand-in driver."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from opforge.native.codegen import sources
from support.native import hand_made
from support.native.cpp_programs import CXX17, build_archive, build_program
from support.native.sanitizers import has_sanitizer

PROGRAM = Path(__file__).with_name("cpp_header.cpp")
SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
COMPILERS = [
    pytest.param(c, marks=pytest.mark.skipif(not shutil.which(c), reason=f"no {c} here"))
    for c in ("g++", "clang++")
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hpp")
    build_archive(hand_made.every_op(), folder)
    return folder


@pytest.fixture(scope="module")
def has_sanitizers(folder):
    return has_sanitizer(SANITIZERS, folder)


@pytest.fixture(scope="module")
def by_gcc(folder, has_sanitizers):
    """The program, with sanitizers if there are any: most of its time is compiling."""
    return build_program(folder, PROGRAM, "demo", flags=SANITIZERS if has_sanitizers else ())


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_program_calls_allocates_and_is_refused_as_in_c(folder, compiler, request):
    if compiler == "g++":
        binary = request.getfixturevalue("by_gcc")
    else:
        binary = build_program(folder, PROGRAM, "demo", compiler=compiler)
    done = subprocess.run([str(binary)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "demo_add: out: the allocator returned NULL for 32 bytes on device 0",
        "demo_add: y: size 4 in dimension 1, expected 2 as in x (n)",
        "demo_add: y: size 4 in dimension 1, expected 2 as in x (n)",
        "demo_add: nothing was built for this call (x fp32 [2, 2], y fp32 [8]):",
        "  x fp16 [m], y fp16 [m]: x is fp32",
        "  x fp16 [m, n], y fp16 [m, n]: x is fp32",
        "  x fp32 [m], y fp32 [m]: x has 2 dimensions",
        "  x fp32 [m, n], y fp32 [m, n]: y has 1 dimension",
        "demo_add: x: has 9 dimensions, expected 0 to 8",
        "demo_add: x: its type has 0 lanes, expected 1",
        "demo_add: y: size 4 in dimension 1, expected 2 as in x (n)",
        "demo_add: out: is fp32 [2, 4], expected fp32 [2, 2] with strides [2, 1]",
        "demo_load: device 7 does not exist; the driver has 1",
        "demo_everything: bias: has 2 dimensions, expected 1",
        "demo_everything: mode: 9 is not a value of the enum, which has 2",
    ]


@pytest.mark.parametrize("first", ["dlpack", "demo"])
def test_a_dltensor_is_accepted_wherever_its_header_is(folder, tmp_path, first):
    real = Path(torch.__file__).parent / "include" / "ATen" / "dlpack.h"
    if not real.exists():
        pytest.skip("this torch has no dlpack.h")
    shutil.copy(real, tmp_path / "dl.h")
    includes = ['#include "dl.h"\n', '#include "demo.hpp"\n']
    program = tmp_path / "main.cpp"
    program.write_text(
        "".join(includes if first == "dlpack" else reversed(includes))
        + "void call(const DLTensor &x, opforge::Tensor &out) { demo::add(x, x, out); }\n"
    )
    paths = [f"-I{folder / 'demo' / 'include'}", f"-I{tmp_path}"]
    subprocess.run(["g++", *CXX17, *paths, "-fsyntax-only", str(program)], check=True)


def test_a_pointer_without_a_known_type_is_refused_by_name(folder, tmp_path):
    program = tmp_path / "main.cpp"
    program.write_text(
        '#include "demo.hpp"\nstruct Half { short bits; };\n'
        "opforge::Tensor view(Half *data) { return opforge::Tensor(data, {4}); }\n"
    )
    command = ["g++", *CXX17, f"-I{folder / 'demo' / 'include'}", "-fsyntax-only", str(program)]
    failed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "pass a DType before the shape" in failed.stderr


def test_the_functions_of_the_header_are_as_accepted(request):
    text = sources(hand_made.every_op())["include/demo.hpp"].decode()
    own = re.search(r"^namespace demo \{$.*", text, re.MULTILINE | re.DOTALL).group()
    file = Path(__file__).parent / "golden" / "demo.hpp"
    if request.config.getoption("--accept"):
        file.write_text(own)
    assert own == file.read_text()
