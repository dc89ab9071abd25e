"""Compiling the extension: what it needs and links, and where something is missing."""

import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

from opforge.errors import BuildFailed
from opforge.serving import build as serving_build
from support.serving import extension

build = serving_build.build_extension


def test_it_is_one_file_for_every_python_from_3_10_on(tmp_path):
    path = build(tmp_path)
    assert path == tmp_path / "_opforge_served.abi3.so"
    # The same sources give the same bytes, wherever they are compiled.
    assert path.read_bytes() == Path(extension().__file__).read_bytes()
    needed = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True)
    libraries = set(re.findall(r"NEEDED.*\[(.*?)\.so", needed.stdout))
    assert libraries <= {"ld-linux-x86-64", "ld-linux-aarch64", "libc", "libdl", "libpthread"}


def test_no_warnings(tmp_path, monkeypatch):
    monkeypatch.setattr(serving_build, "_FLAGS", (*serving_build._FLAGS, "-Werror", "-O0"))
    build(tmp_path)


def test_without_pythons_headers(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(BuildFailed) as refused:
        build(tmp_path)
    assert refused.value.found == f"no {tmp_path}/Python.h"
    assert "apt install python3-dev" in refused.value.fix
