"""Compiling: where the compiler is missing or refuses, and what it writes."""

import hashlib
import subprocess

import pytest

from opforge.errors import BuildFailed
from opforge.native.artifacts.toolchain import compile_library


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "src" / "tiny").mkdir(parents=True)
    (tmp_path / "src" / "tiny" / "one.c").write_text(
        "int tiny_one(void);\nint tiny_one(void) { return 1; }\n"
    )
    return tmp_path


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_same_sources_give_the_same_libraries_anywhere(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("elsewhere")
    (other / "src" / "tiny").mkdir(parents=True)
    source = (folder / "src" / "tiny" / "one.c").read_bytes()
    (other / "src" / "tiny" / "one.c").write_bytes(source)
    written = compile_library(folder, "tiny", static=True)
    assert written == [folder / "lib" / "libtiny.so", folder / "lib" / "libtiny.a"]
    first = [digest(path) for path in written]
    assert first == [digest(path) for path in compile_library(other, "tiny", static=True, jobs=2)]
    assert compile_library(folder, "tiny") == written[:1]


def add_runtime(folder):
    for name in ("arch", "broadcast", "call", "device", "driver", "graph"):
        text = f"int tiny_{name}(void);\nint tiny_{name}(void) {{ return 1; }}\n"
        (folder / "src" / "tiny" / f"{name}.c").write_text(text)


def test_the_runtime_is_compiled_in_the_same_units_whatever_the_jobs(folder):
    add_runtime(folder)
    shared, archive = compile_library(folder, "tiny", static=True)
    said = subprocess.run(["ar", "t", archive], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["driver.o", "graph.o", "one.o"]
    first = [digest(shared), digest(archive)]
    assert first == [digest(path) for path in compile_library(folder, "tiny", static=True, jobs=4)]


def test_an_error_in_the_runtime_names_its_file(folder):
    add_runtime(folder)
    (folder / "src" / "tiny" / "broadcast.c").write_text("\nint broken = wrong;\n")
    with pytest.raises(BuildFailed, match=r"src/tiny/broadcast\.c:2:14: error"):
        compile_library(folder, "tiny")


def compiler(folder, text):
    path = folder / "own_cc"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("script", "command", "said"),
    [
        (
            "",
            "no-such-compiler -O1",
            r"no-such-compiler, which .*\n.*CC=no-such-compiler -O1",
        ),
        ("", "cc '-O1", "CC cannot be read as a command: No closing quotation"),
        (
            '#!/bin/sh\nprintf "\\377 odd\\n" >&2\nexit 1\n',
            "./own_cc",
            "\N{REPLACEMENT CHARACTER} odd",
        ),
        ("", "cc -DWRONG=1", "error seen"),
    ],
)
def test_a_compiler_that_makes_nothing_is_reported(script, command, said, folder, monkeypatch):
    compiler(folder, script)
    (folder / "src" / "tiny" / "one.c").write_text("#ifdef WRONG\n#error seen\n#endif\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CC", command)
    with pytest.raises(BuildFailed, match=said):
        compile_library(folder, "tiny")
    assert not (folder / "lib" / "libtiny.so").exists()


def test_a_compiler_may_be_named_relative_to_the_current_folder(folder, monkeypatch):
    compiler(folder, '#!/bin/sh\nexec cc "$@"\n')
    (folder / "deeper").mkdir()
    monkeypatch.chdir(folder / "deeper")
    monkeypatch.setenv("CC", "../own_cc")
    assert compile_library(folder, "tiny")
