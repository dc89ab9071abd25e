"""The C++ program, against golden files; OPFORGE_ACCEPT=1 rewrites them."""

import os
from pathlib import Path

import pytest

from opforge.aoti_package.contents import PackagedInput, PackagedOp
from opforge.aoti_package.cpp import cpp_needs, render_cpp, write_cpp
from opforge.aoti_package.package_record import Package

GOLDEN = Path(__file__).parent / "golden"


def packaged(*ops):
    inputs = (
        PackagedInput("x", "bfloat16", (8, 128), "cuda:0"),
        PackagedInput("cfg.index", "int64", (), "cpu"),
    )
    return Package(Path("/models/silu-v2.pt2"), "Model", False, (), (), ops, (), inputs)


@pytest.mark.parametrize("name", ["main.cpp", "CMakeLists.txt"])
def test_the_program_matches_the_golden_file(name):
    text = render_cpp(packaged())[name]
    if os.environ.get("OPFORGE_ACCEPT") == "1":
        GOLDEN.joinpath(name).write_text(text)
    assert text == GOLDEN.joinpath(name).read_text()


def test_opaque_ops_are_listed_with_what_to_do():
    python = PackagedOp("lib::python", False, "", "/ops.py:3", "ops", "/ops.py")
    library = PackagedOp("lib::library", False, "")
    seen = PackagedOp("lib::seen", True, "")
    text = cpp_needs(packaged(python, library, seen))
    assert text == (
        "It needs lib::python at run time, which /ops.py defines in Python: without Python, "
        "register it with TORCH_LIBRARY in C++. It needs lib::library at run time: link or dlopen "
        "the library that defines it."
    )
    assert text in render_cpp(packaged(python, library, seen))["main.cpp"]


def test_files_that_would_not_change_are_left_alone(tmp_path):
    files = write_cpp(packaged(), tmp_path / "app")
    times = [os.utime(f, (1, 1)) or f.stat().st_mtime for f in files]
    assert [f.stat().st_mtime for f in write_cpp(packaged(), tmp_path / "app")] == times
