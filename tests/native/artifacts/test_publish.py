"""A build's files: all or none, also after `kill -9`; unchanged and foreign ones stay."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading

import pytest
from filelock import FileLock

from opforge.errors import NotALibrary, OutputNotWritable
from opforge.native.artifacts import build_record, publish
from opforge.native.artifacts.hashes import read_sums, sums_path
from opforge.native.artifacts.publish import check_writable, write_output
from opforge.native.library.shared_library import refuse_damaged
from support.processes import environment

FILES = {"include/ops.h": b"header", "src/ops.c": b"source", "lib/libops.so": b"library"}
OLD = {"include/ops.h": b"old", "lib/libops.so": b"old", "src/gone.c": b"old"}
NEW = {"include/ops.h": b"new", "lib/libops.so": b"new", "src/deep/more.c": b"new"}
RECORD = build_record.stamp_path("ops"), sums_path("ops")


def build(folder, files, name="ops"):
    return write_output(folder, files, stamp=build_record.make(folder, {}, {}), name=name)


def tree(folder):
    """All files but the record of the build and a lock."""
    files = (path for path in folder.rglob("*") if path.is_file())
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    return {p: data for p, data in found.items() if p not in RECORD and not p.endswith(".lock")}


@pytest.fixture(params=["exchanged", "in the folder", "closed parent", "no exchange", "no links"])
def _way(request, tmp_path, monkeypatch):
    """How a build into `tmp_path / "dist"` is published."""
    if request.param == "in the folder":
        (tmp_path / "dist").mkdir()
        monkeypatch.chdir(tmp_path / "dist")
    elif request.param == "closed parent":
        access = os.access
        monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path and access(path, mode))
        (tmp_path / "dist").mkdir()
    elif request.param == "no exchange":
        monkeypatch.setattr("ctypes.CDLL", lambda *_: None)
    elif request.param == "no links":

        def fail(*_, **__):
            raise OSError("no links here")

        monkeypatch.setattr("os.link", fail)


@pytest.mark.usefixtures("_way")
def test_a_folder_holds_the_files_of_its_builds_and_what_else_was_there(tmp_path):
    dist = tmp_path / "dist"
    first = {**FILES, "src/deep/old.c": b"", "src/edited.c": b""}
    assert set(build(dist, first).changed) == {*first, *RECORD}
    (dist / "src/edited.c").write_bytes(b"by hand")
    (dist / "mine").mkdir()
    (dist / "mine/notes.txt").write_bytes(b"mine")
    (dist / "link").symlink_to("nowhere")
    shared = {"include/opforge/abi.h": b"abi"}
    build(dist, {"include/b.h": b"", **shared}, "b")
    build(dist, {**FILES, **shared})
    build(dist, FILES)
    assert not (dist / "src/deep").exists()
    assert (dist / "link").is_symlink()
    assert tree(dist).items() >= {
        **FILES, **shared, "src/edited.c": b"by hand", "mine/notes.txt": b"mine",
        "include/b.h": b"",
    }.items()  # fmt: skip
    assert not [*tmp_path.glob(".*-*"), *dist.glob(".*-*")]


@pytest.mark.usefixtures("_way")
def test_unchanged_files_keep_their_time(tmp_path):
    dist = tmp_path / "dist"
    build(dist, FILES)
    (dist / "mine.txt").touch()
    for path in tree(dist):
        os.utime(dist / path, ns=(10**9, 10**9))
    assert build(dist, FILES).changed == ()
    written = build(dist, {**FILES, "src/ops.c": b"sourcE", "src/new.c": b""})
    assert {"src/new.c", "src/ops.c"} <= set(written.changed)
    assert {"include/ops.h", "lib/libops.so"} <= set(written.unchanged)
    times = {path: (dist / path).stat().st_mtime_ns for path in tree(dist)}
    assert {path for path, time in times.items() if time > 10**9} == {"src/ops.c", "src/new.c"}


@pytest.mark.usefixtures("_way")
def test_whoever_has_a_file_open_keeps_it(tmp_path):
    dist = tmp_path / "dist"
    build(dist, FILES)
    with (dist / "lib/libops.so").open("rb") as mapped, (dist / "log.txt").open("ab") as log:
        build(dist, {**FILES, "lib/libops.so": b"other"})
        assert mapped.read() == FILES["lib/libops.so"]
        log.write(b"goes on")
    assert (dist / "log.txt").read_bytes() == b"goes on"


def test_what_another_program_writes_meanwhile_is_kept(tmp_path, monkeypatch):
    dist = tmp_path / "dist"
    build(dist, FILES)
    copied = publish._copied

    def slow(root, stage):
        inodes = copied(root, stage)
        (dist / "other").mkdir()
        (dist / "other/object.o").write_bytes(b"new")
        return inodes

    monkeypatch.setattr(publish, "_copied", slow)
    build(dist, NEW)
    assert tree(dist) == {**NEW, "other/object.o": b"new"}


def test_a_linked_folder_stays_linked(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "dist").symlink_to("real", target_is_directory=True)
    build(tmp_path / "dist", OLD)
    build(tmp_path / "dist", NEW)
    assert (tmp_path / "dist").is_symlink()
    assert tree(tmp_path / "real") == NEW


def test_files_and_folders_follow_the_umask_and_libraries_are_executable(tmp_path):
    previous = os.umask(0o027)
    try:
        build(tmp_path / "dist", FILES)
    finally:
        os.umask(previous)
    modes = {p: stat.S_IMODE((tmp_path / "dist" / p).stat().st_mode) for p in (*FILES, "", "lib")}
    assert modes == {
        "include/ops.h": 0o640, "src/ops.c": 0o640, "lib/libops.so": 0o750, "": 0o750, "lib": 0o750,
    }  # fmt: skip
    (tmp_path / "dist").chmod(0o770)
    build(tmp_path / "dist", NEW)
    assert stat.S_IMODE((tmp_path / "dist").stat().st_mode) == 0o770


# A step is whatever a build asks of the system. `runs` are folders, and the step at which a build
# into each is killed; what is printed is how it ended, and how many steps it took.
KILLED = """
import json, os, signal, sys
from native.artifacts.test_publish import NEW, build_record, write_output
works_there, *runs = json.loads(sys.argv[1])
build_record.current_versions()  # is kept
for folder, last in runs:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.chdir(folder if works_there else "/")
        stamp, steps = build_record.make(folder, {}, {}), 0
        def step(event, _):
            global steps
            if event.startswith(("os.", "open", "shutil.", "ctypes.")):
                steps += 1
                if steps == last:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(step)
        write_output(folder, NEW, stamp=stamp, name="ops")
        os.write(write, b"%d" % steps)
        os._exit(0)
    os.close(write)
    print(os.waitpid(child, 0)[1], os.read(read, 10).decode())
    os.close(read)
"""


def killed(runs, *, works_there):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, json.dumps([works_there, *runs])],
        capture_output=True, text=True, check=True, env=environment(),
    )  # fmt: skip
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("works_there", [False, True])
def test_of_fifty_killed_builds_none_is_loaded_mixed_and_the_next_is_whole(works_there, tmp_path):
    folders = [tmp_path / str(number) / "dist" for number in range(51)]
    for folder in folders:
        build(folder, OLD)
    [(status, taken)] = killed([(str(folders[0]), 0)], works_there=works_there)
    assert status == "0"
    steps = [1 + int(taken) * number // 50 for number in range(50)]
    ends = killed([*zip(map(str, folders[1:]), steps, strict=True)], works_there=works_there)
    assert [int(status) for status, *_ in ends] == [signal.SIGKILL] * 50
    loaded = {}
    for folder in folders[1:]:
        try:
            refuse_damaged(folder / "lib/libops.so", "ops")
        except NotALibrary:
            loaded[folder] = None
            continue
        loaded[folder] = {p: d for p, d in tree(folder).items() if not p.startswith(".")}
        for file, digest in read_sums(folder / sums_path("ops")).items():
            assert build_record.digest_of(folder / file) == digest
    # Where the folder is exchanged, a library can be loaded at all times.
    expected = [OLD, NEW, None] if works_there else [OLD, NEW]
    assert all(each in loaded.values() for each in expected)
    assert all(each in expected for each in loaded.values())
    for folder in folders[1:]:
        build(folder, NEW)
        assert tree(folder).items() >= NEW.items()
        assert not [*folder.parent.glob(".*-*"), *folder.glob(".*-*")]


def test_a_build_waits_for_another_but_not_for_ever(tmp_path, monkeypatch):
    build(tmp_path / "dist", OLD)
    lock = FileLock(tmp_path / ".dist.opforge.lock")
    second = threading.Thread(target=build, args=(tmp_path / "dist", NEW))
    with lock:
        second.start()
        second.join(0.2)
        assert second.is_alive()
    second.join()
    assert tree(tmp_path / "dist") == NEW
    monkeypatch.setattr(publish, "_PATIENCE", 0.0)
    with lock, pytest.raises(OutputNotWritable, match="another build has been writing to"):
        build(tmp_path / "dist", OLD)
    assert tree(tmp_path / "dist") == NEW


@pytest.mark.parametrize("failing", [KeyboardInterrupt, OSError])
def test_a_build_that_is_interrupted_leaves_the_last_one(failing, tmp_path, monkeypatch):
    build(tmp_path / "dist", OLD)

    def fail(*_):
        raise failing("stop")

    monkeypatch.setattr(publish, "_exchanged", fail)
    with pytest.raises((KeyboardInterrupt, OutputNotWritable)):
        build(tmp_path / "dist", NEW)
    assert tree(tmp_path / "dist") == OLD
    assert {path.name for path in tmp_path.iterdir()} == {"dist", ".dist.opforge.lock"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_parent_that_cannot_be_written_to_is_left_alone(tmp_path):
    (tmp_path / "dist").mkdir()
    tmp_path.chmod(0o500)
    try:
        check_writable(tmp_path / "dist")
        build(tmp_path / "dist", OLD)
        build(tmp_path / "dist", NEW)
        with pytest.raises(OutputNotWritable, match="Permission denied"):
            check_writable(tmp_path / "other")
    finally:
        tmp_path.chmod(0o700)
    assert tree(tmp_path / "dist") == NEW
    assert [path.name for path in tmp_path.iterdir()] == ["dist"]


def test_a_file_in_the_way_is_named(tmp_path):
    dist = tmp_path / "dist"
    dist.mkdir()
    (dist / "include").write_text("")
    with pytest.raises(OutputNotWritable, match=f"{dist / 'include'}: "):
        build(dist, FILES)
    assert tree(dist) == {"include": b""}
    shutil.rmtree(dist)
    dist.write_text("")
    for act in (check_writable, lambda folder: build(folder, FILES)):
        with pytest.raises(OutputNotWritable, match=f"cannot write to {dist}"):
            act(dist)


def test_a_folder_with_much_else_is_not_exchanged(tmp_path, monkeypatch):
    dist = tmp_path / "dist"
    build(dist, OLD)
    (dist / "notes.txt").write_text("mine")
    monkeypatch.setattr(publish, "_MOST_FILES", 3)
    there = dist.stat().st_ino
    build(dist, NEW)
    assert dist.stat().st_ino == there
    assert tree(dist) == {**NEW, "notes.txt": b"mine"}


def test_asking_whether_a_folder_is_writable_leaves_nothing(tmp_path):
    check_writable(tmp_path / "a" / "dist")
    assert list(tmp_path.iterdir()) == []
