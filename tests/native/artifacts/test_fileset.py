"""Files of a build: all or none, unchanged ones untouched, obsolete ones removed."""

import hashlib
import os
import stat
from pathlib import Path

import pytest

from opforge.errors import OpforgeError, OutputNotWritable
from opforge.native.artifacts import build_record, fileset
from opforge.native.artifacts.fileset import check_writable, write_output
from opforge.native.artifacts.sums import sums_path, written_sums

FILES = {"include/ops.h": b"header", "src/ops.c": b"source", "lib/libops.so": b"\x7fELF"}
RECORD = build_record.stamp_path("ops"), sums_path("ops")
# Modes mean nothing to root.
needs_modes = pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")


def tree(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }


def build(folder, files, **arguments):
    return write_output(folder, files, stamp=build_record.make(folder, arguments, {}), name="ops")


def test_a_new_folder_holds_the_files_and_nothing_else(tmp_path):
    out = tmp_path / "deep" / "dist"
    written = write_output(out, FILES)
    assert tree(out) == FILES
    assert written.changed == tuple(sorted(FILES))
    assert sorted(p.name for p in out.iterdir()) == ["include", "lib", "src"]


def test_unchanged_files_keep_their_time_and_place(tmp_path):
    write_output(tmp_path, FILES)
    for path in FILES:
        os.utime(tmp_path / path, ns=(10**9, 10**9))
    inode = (tmp_path / "src/ops.c").stat().st_ino
    written = write_output(tmp_path, {**FILES, "src/ops.c": b"sourcE", "src/new.c": b""})
    assert written.changed == ("src/new.c", "src/ops.c")
    assert written.unchanged == ("include/ops.h", "lib/libops.so")
    assert (tmp_path / "include/ops.h").stat().st_mtime_ns == 10**9
    assert (tmp_path / "src/ops.c").stat().st_mtime_ns > 10**9
    assert (tmp_path / "src/ops.c").stat().st_ino != inode


def test_a_reader_of_an_old_file_keeps_it(tmp_path):
    write_output(tmp_path, FILES)
    with (tmp_path / "lib/libops.so").open("rb") as mapped:
        write_output(tmp_path, {**FILES, "lib/libops.so": b"other"})
        assert mapped.read() == FILES["lib/libops.so"]


def test_files_follow_the_umask_and_libraries_are_executable(tmp_path):
    previous = os.umask(0o027)
    try:
        write_output(tmp_path / "dist", FILES)
    finally:
        os.umask(previous)
    modes = {p: stat.S_IMODE((tmp_path / "dist" / p).stat().st_mode) for p in FILES}
    assert modes == {"include/ops.h": 0o640, "src/ops.c": 0o640, "lib/libops.so": 0o750}


def test_files_of_the_last_build_that_are_not_made_any_more_are_removed(tmp_path):
    build(tmp_path, {**FILES, "src/deep/old.c": b"old", "src/edited.c": b"made"})
    (tmp_path / "src/edited.c").write_bytes(b"by hand")
    (tmp_path / "mine.txt").write_bytes(b"mine")
    build(tmp_path, FILES)
    assert not (tmp_path / "src/deep").exists()
    kept = {k: v for k, v in tree(tmp_path).items() if k not in RECORD}
    assert kept == {**FILES, "src/edited.c": b"by hand", "mine.txt": b"mine"}


def forge_record(folder, **written):
    """A record that claims to have written other files, with their real hashes."""
    forged = {p: hashlib.sha256(data).hexdigest() for p, data in written.items()}
    with (folder / sums_path("ops")).open("ab") as sums:
        sums.write(written_sums(forged))


def test_a_forged_record_removes_nothing_outside_the_folder(tmp_path):
    out, victim = tmp_path / "dist", tmp_path / "elsewhere" / "victim.txt"
    build(out, FILES)
    victim.parent.mkdir()
    victim.write_bytes(b"mine")
    (out / "linked").symlink_to(victim.parent, target_is_directory=True)
    (out / "link.txt").symlink_to(victim)
    (out / "circle").symlink_to(out / "circle")
    outside = ["../elsewhere/victim.txt", str(victim), "lib/../../elsewhere/victim.txt"]
    linked = ["linked/victim.txt", "link.txt", "circle", ".", "nul\0"]
    forge_record(out, **dict.fromkeys([*outside, *linked], b"mine"))
    build(out, FILES)
    assert victim.read_bytes() == b"mine"
    assert all((out / link).is_symlink() for link in ("linked", "link.txt", "circle"))


def test_a_linked_output_folder_is_cleared_as_any_other(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "dist").symlink_to(tmp_path / "real", target_is_directory=True)
    build(tmp_path / "dist", {**FILES, "src/old.c": b"old"})
    build(tmp_path / "dist", FILES)
    assert not (tmp_path / "dist/src/old.c").exists()


def test_another_librarys_files_are_left_alone(tmp_path):
    build(tmp_path, FILES)
    other = build_record.make(tmp_path, {}, {})
    write_output(tmp_path, {"include/other.h": b""}, stamp=other, name="other")
    assert {*FILES, "include/other.h"} <= set(tree(tmp_path))


def test_the_stamp_is_written_last_and_lists_what_was_written(tmp_path, monkeypatch):
    order = []
    replace = Path.replace

    def note(self, target):
        order.append(Path(target).relative_to(tmp_path).as_posix())
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", note)
    build(tmp_path, FILES)
    assert tuple(order[-2:]) == RECORD
    assert set(build_record.read(tmp_path / build_record.stamp_path("ops")).written) == set(FILES)


@pytest.mark.parametrize("failing", range(4))
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interruption_leaves_the_previous_output_as_it_was(
    failing, error, tmp_path, monkeypatch
):
    build(tmp_path, {**FILES, "src/old.c": b"old"}, version=1)
    before = tree(tmp_path)
    times = {p: (tmp_path / p).stat().st_mtime_ns for p in before}
    calls = iter(range(100))
    replace = Path.replace

    def fail(self, target):
        if next(calls) == failing:
            raise error("stop")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    new = {"include/ops.h": b"HEADER", "new/deep/x.c": b"x", "src/ops.c": b"SOURCE"}
    with pytest.raises((KeyboardInterrupt, OutputNotWritable)):
        build(tmp_path, new, version=2)
    monkeypatch.undo()
    assert tree(tmp_path) == before
    assert {p: (tmp_path / p).stat().st_mtime_ns for p in before} == times
    assert not (tmp_path / "new").exists()
    assert [p for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    build(tmp_path, new, version=2)
    assert set(tree(tmp_path)) == {*new, *RECORD}


def test_a_removal_that_fails_brings_everything_back(tmp_path, monkeypatch):
    build(tmp_path, {**FILES, "src/old.c": b"old"})
    before = tree(tmp_path)
    unlink = Path.unlink

    def fail(self, missing_ok=False):
        if self.name == "old.c":
            raise PermissionError(13, "Permission denied", str(self))
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(OutputNotWritable, match=r"old\.c: Permission denied"):
        build(tmp_path, {**FILES, "src/ops.c": b"SOURCE"})
    assert tree(tmp_path) == before


def test_a_first_build_that_fails_leaves_no_folder(tmp_path, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(fileset, "_put", fail)
    with pytest.raises(KeyboardInterrupt):
        write_output(tmp_path / "a" / "dist", FILES)
    assert list(tmp_path.iterdir()) == []


def test_file_systems_without_hard_links_work(tmp_path, monkeypatch):
    def fail(self, target):
        raise OSError("no links here")

    write_output(tmp_path, FILES)
    monkeypatch.setattr(Path, "hardlink_to", fail)
    write_output(tmp_path, {**FILES, "src/ops.c": b"SOURCE"})
    assert tree(tmp_path)["src/ops.c"] == b"SOURCE"


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path):
    (tmp_path / "include").write_text("")
    with pytest.raises(OutputNotWritable) as caught:
        write_output(tmp_path, FILES)
    assert str(tmp_path / "include") in str(caught.value)
    assert tree(tmp_path) == {"include": b""}


@pytest.mark.parametrize("act", [check_writable, lambda folder: write_output(folder, FILES)])
def test_a_folder_that_is_a_file_is_named(act, tmp_path):
    (tmp_path / "dist").write_text("")
    with pytest.raises(OutputNotWritable, match="cannot write to") as caught:
        act(tmp_path / "dist")
    assert str(tmp_path / "dist") in str(caught.value)
    assert "fix: choose another folder with -o" in str(caught.value)
    assert isinstance(caught.value, OpforgeError)


@needs_modes
def test_a_folder_without_permission_is_named(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(OutputNotWritable, match="Permission denied"):
            check_writable(tmp_path / "dist")
    finally:
        tmp_path.chmod(0o700)


def test_asking_whether_a_folder_is_writable_leaves_nothing(tmp_path):
    check_writable(tmp_path / "a" / "dist")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", ""])
def test_no_path_leads_out_of_the_folder(path, tmp_path):
    with pytest.raises(ValueError, match="is outside the output folder"):
        write_output(tmp_path, {path: b""})
