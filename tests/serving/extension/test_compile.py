"""Compiling the extension: what it needs and links, and where something is missing."""

import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

from opforge.errors import BuildFailed
from opforge.serving.extension import compile as extension_compile
from support.serving import extension

build = extension_compile.build_extension


def test_it_is_one_file_for_every_python_from_3_10_on(tmp_path):
    path = build(tmp_path / "new")
    assert path == tmp_path / "new" / "_opforge_served.abi3.so"
    # The same sources give the same bytes, wherever they are compiled.
    assert path.read_bytes() == Path(extension().__file__).read_bytes()
    needed = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True)
    libraries = set(re.findall(r"NEEDED.*\[(.*?)\.so", needed.stdout))
    assert libraries <= {"ld-linux-x86-64", "ld-linux-aarch64", "libc", "libdl", "libpthread"}


def test_no_warnings(tmp_path, monkeypatch):
    monkeypatch.setattr(extension_compile, "_FLAGS", (*extension_compile._FLAGS, "-Werror", "-O0"))
    build(tmp_path)


def test_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(
        BuildFailed, match=r"^no-such-compiler, which compiles native libraries, is"
    ):
        build(tmp_path)


def test_a_compiler_that_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(extension_compile, "_FLAGS", ("-no-such-flag",))
    with pytest.raises(BuildFailed, match="failed with exit code 1") as refused:
        build(tmp_path)
    assert "-no-such-flag" in str(refused.value)


def test_without_pythons_headers(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(BuildFailed) as refused:
        build(tmp_path)
    what, found, fix = str(refused.value).splitlines()
    assert what == (
        "Python.h, which the extension that serves launches is compiled with, is not installed"
    )
    assert found == f"  found: no {tmp_path}/Python.h"
    assert fix == (
        "  fix: install Python's headers (`apt install python3-dev`, `dnf install python3-devel`), "
        "or build with a Python that has them, such as conda's or uv's"
    )
