"""Stamps: a build whose inputs and outputs have not changed has nothing to do."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from opforge.native.artifacts import build_record
from opforge.native.artifacts.publish import write_output

ARGUMENTS = {"targets": ("ops.py",), "archs": [80, 90], "name": None, "ptx": False}


@pytest.fixture
def built(tmp_path, monkeypatch):
    """A build of a user's file; returns the stamp's path."""
    source = tmp_path / "ops.py"
    source.write_text("x = 1\n")
    read = {source: build_record.digest_of(source)}
    tuning = tmp_path / "tuning.json"
    tuning.write_text("{}")
    made = build_record.make(tmp_path / "dist", ARGUMENTS, read, [tuning])
    write_output(tmp_path / "dist", {"include/ops.h": b"header"}, stamp=made, name="ops")
    return tmp_path / "dist" / build_record.stamp_path("ops")


def is_unchanged(built, arguments=ARGUMENTS):
    found = build_record.find_unchanged(built.parents[2], arguments)
    assert found in {None, built}
    return found is not None


def test_a_build_with_nothing_changed_is_recognised_also_where_it_was_moved(built):
    assert is_unchanged(built)
    os.utime(built.parents[3] / "ops.py")
    assert is_unchanged(built)
    moved = built.parents[3].rename(built.parents[3].with_name("moved"))
    assert is_unchanged(moved / "dist" / build_record.stamp_path("ops"))
    moved.rename(built.parents[3])


@pytest.mark.parametrize(
    ("path", "how"), [("tuning.json", "has changed"), ("dist/include/ops.h", "is gone")]
)
def test_a_file_that_was_read_or_written_is_noticed(path, how, built):
    file = built.parents[3] / path
    if how == "is gone":
        file.unlink()
    else:
        file.write_text("other")
    stamp = build_record.read(built)
    changed = build_record.changed_files(built.parents[2], {**stamp.read, **stamp.written})
    assert [(Path(name).name, what) for name, what in changed.items()] == [(file.name, how)]
    assert not is_unchanged(built)


def test_other_arguments_are_noticed(built):
    assert not is_unchanged(built, {**ARGUMENTS, "archs": [80]})


def test_another_version_is_noticed(built, monkeypatch):
    now = build_record.current_versions()
    monkeypatch.setattr(build_record, "current_versions", lambda: {**now, "triton": "0.0"})
    (told,) = build_record.changed_tools(build_record.read(built))
    assert told == f"triton was {now['triton']} and is 0.0"
    assert not is_unchanged(built)


def test_another_variable_is_noticed(built, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    assert is_unchanged(built)
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/opt/ptxas")
    assert not is_unchanged(built)


@pytest.mark.parametrize("content", ["", '{"format": 1}'])
def test_an_unreadable_stamp_does_not_count(content, built):
    built.write_text(content)
    assert build_record.read(built) is None
    assert not is_unchanged(built)


def test_a_record_without_its_hashes_is_none(built):
    built.with_name("SHA256SUMS").unlink()
    assert not is_unchanged(built)


def test_a_stamp_is_the_same_each_time(built):
    content = json.loads(built.read_text())
    assert built.read_bytes() == build_record.read(built).to_json()
    assert sorted(content["read"]) == ["../ops.py", "../tuning.json"]
    assert list(build_record.read(built).written) == ["include/ops.h"]


def test_the_users_files_that_an_import_reads_are_found(tmp_path, monkeypatch):
    package = tmp_path / "stamped_package"
    package.mkdir()
    (package / "__init__.py").write_text("import json, click, opforge.errors\n")
    (package / "ops.py").write_text("from . import helper\n")
    (package / "helper.py").write_text("")
    (package / "unused.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("", ".ops", ".helper"):
        sys.modules.pop(f"stamped_package{name}", None)
    with build_record.watching_imports() as found:
        __import__("stamped_package.ops")
    assert found == {
        package / name: build_record.digest_of(package / name)
        for name in ("__init__.py", "ops.py", "helper.py")
    }


def test_a_file_that_is_written_while_it_is_imported_is_never_unchanged(tmp_path, monkeypatch):
    source = tmp_path / "stamped_module.py"
    source.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with build_record.watching_imports() as found:
        __import__("stamped_module")
        time.sleep(0.05)
        source.write_text("x = 1")
    made = build_record.make(tmp_path / "dist", {}, found)
    write_output(tmp_path / "dist", {}, stamp=made, name="ops")
    assert build_record.find_unchanged(tmp_path / "dist", {}) is None


def test_installed_files_and_pythons_own_are_not_the_users():
    assert not build_record.is_users(json.__file__)
    assert not build_record.is_users(pytest.__file__)
    assert not build_record.is_users(build_record.__file__)
    assert not build_record.is_users("nowhere.py")
    assert build_record.is_users(__file__)
