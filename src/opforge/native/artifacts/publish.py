"""Publishes a build: its folder holds all of it or what it held before, also after `kill -9`.

A complete copy of the folder is staged beside it, by hard links, and the two are exchanged in one
step. Where that cannot be, files are renamed one by one: SHA256SUMS is empty before the first and
written after the last, and what an empty one should list is not loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import hashlib
import itertools
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from ...errors import OutputNotWritable
from .build_record import Stamp, stamp_path
from .hashes import SUFFIX, read_sums, sums_path, written_sums

_STAGE = ".opforge-"
# Seconds for another build to write its files, which takes it a fraction of one.
_PATIENCE = 60.0
# A folder with more files is not for builds alone: a prefix such as /usr/local, or a home.
_MOST_FILES = 10_000


@dataclass(frozen=True)
class Written:
    """What happened to the files, by their paths in the folder."""

    changed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()


def write_output(
    folder: str | os.PathLike[str], files: Mapping[str, bytes], *, stamp: Stamp, name: str
) -> Written:
    """Make `folder` hold the `files` of library `name`, and leave what is not the library's alone.

    Files that its last build wrote, and that are not made any more, are removed unless somebody has
    changed them.

        made = build_record.make("dist", arguments, files_read)
        write_output("dist", {"include/ops.h": b"..."}, stamp=made, name="ops")
    """
    root, sums = Path(folder).resolve(), sums_path(name)
    content = dict(sorted({**files, stamp_path(name): stamp.to_json()}.items()))
    content[sums] = written_sums({p: hashlib.sha256(c).hexdigest() for p, c in content.items()})
    with _telling(root), _locked(root):
        beside = f".{glob.escape(root.name)}{_STAGE}*"
        for left in (*root.parent.glob(beside), *root.glob(f"{_STAGE}*")):
            # Of builds that were killed.
            shutil.rmtree(left, ignore_errors=True)
        changed = [path for path in content if not _holds(root / path, content[path])]
        gone = _obsolete(root, sums, content)
        signature = f"{sums}{SUFFIX}"
        if sums in changed and (root / signature).is_file():
            # Nobody has signed what is built now.
            gone.append(signature)
        if changed or gone:
            _publish(root, {path: content[path] for path in changed}, gone, (sums, content[sums]))
    return Written(tuple(changed), tuple(path for path in content if path not in set(changed)))


def check_writable(folder: str | os.PathLike[str]) -> None:
    """Raise `OutputNotWritable` before minutes of compiling, not after."""
    root = Path(folder).resolve()
    there = next(path for path in (root, *root.parents) if os.path.lexists(path))
    with _telling(root):
        try:
            tempfile.TemporaryDirectory(dir=there, prefix=_STAGE).cleanup()
        except OSError as error:
            error.filename = str(root)
            raise


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data


def _obsolete(root: Path, sums: str, needed: Iterable[str]) -> list[str]:
    """What the last build wrote and nobody else did; libraries of one folder share some files."""
    others = (place for place in root.glob(sums_path("*")) if place != root / sums)
    kept = {*needed, *(path for place in others for path in _listed(place))}
    return [
        path
        for path, digest in _listed(root / sums).items()
        if path not in kept
        and (root / path).is_file()
        and hashlib.sha256((root / path).read_bytes()).hexdigest() == digest
    ]


def _listed(sums: Path) -> dict[str, str]:
    try:
        return read_sums(sums)
    except (OSError, ValueError):
        return {}


def _publish(
    root: Path, changed: Mapping[str, bytes], gone: Iterable[str], sums: tuple[str, bytes]
) -> None:
    with _stage(root) as stage:
        copied = _copied(root, stage)
        for path, data in changed.items():
            _write(stage / path, data)
        if copied is not None:
            for path in gone:
                _remove(stage, path)
            if _exchanged(stage, root):
                _bring_along(stage, root, copied)
                return
        for path in (*changed, sums[0]):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
        _write(stage / sums[0], b"")
        for path in (sums[0], *sorted(changed.keys() - {sums[0]})):
            (stage / path).replace(root / path)
        for path in gone:
            _remove(root, path)
        _write(stage / sums[0], sums[1])
        (stage / sums[0]).replace(root / sums[0])


@contextlib.contextmanager
def _stage(root: Path) -> Iterator[Path]:
    """An empty folder beside this one, or in it if that one cannot take its place."""
    # A mount point stays where it is, and a process stays in the folder that it is in.
    works_here = Path("/proc/self/cwd").resolve().is_relative_to(root)
    if works_here or root.is_mount() or not os.access(root.parent, os.W_OK):
        stage = root / f"{_STAGE}{secrets.token_hex(4)}"
    else:
        stage = root.with_name(f".{root.name}{_STAGE}{secrets.token_hex(4)}")
    stage.mkdir(parents=True)
    try:
        yield stage
    except OSError as error:
        # Nobody knows the stage.
        error.filename = str(error.filename or root).replace(f"{stage}", f"{root}")
        raise
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _copied(root: Path, stage: Path) -> set[int] | None:
    """The inodes of all files of the folder, which the stage has now; None if it does not have all.

    Links, not copies: an unchanged file keeps its time, and whoever writes to one goes on.
    """
    if stage.parent == root:
        return None
    try:
        linked = _linked(root, stage) if root.exists() else iter(())
        copied = set(itertools.islice(linked, _MOST_FILES))
        return copied if next(linked, None) is None else None
    except OSError:
        return None


def _linked(source: Path, target: Path) -> Iterator[int]:
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                (target / entry.name).mkdir()
                yield from _linked(Path(entry.path), target / entry.name)
            else:
                os.link(entry.path, target / entry.name, follow_symlinks=False)
                yield entry.inode()
    found = source.stat()
    os.chown(target, found.st_uid, found.st_gid)
    shutil.copystat(source, target)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # It may be a link to what is in the folder.
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    if ".so" in path.suffixes:
        # As linkers leave them: executable for whoever can read them.
        mode = path.stat().st_mode
        path.chmod(mode | (mode & 0o444) >> 2)


def _remove(root: Path, path: str) -> None:
    (root / path).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        for folder in (root / path).parents:
            if folder == root:
                break
            folder.rmdir()


def _exchanged(stage: Path, root: Path) -> bool:
    """Put the stage in the folder's place, and the folder in its; False if the system cannot."""
    if not root.exists():
        stage.rename(root)
        return True
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    places = here, os.fsencode(stage), here, os.fsencode(root)
    return renameat2 is not None and renameat2(*places, swap) == 0


def _bring_along(old: Path, root: Path, copied: set[int]) -> None:
    """Move what another program has put into the folder since it was copied."""
    for folder, _, names in os.walk(old):
        for path in (Path(folder, name) for name in names):
            if path.lstat().st_ino not in copied:
                target = root / path.relative_to(old)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    """One build at a time; the system takes the lock from a process that ends."""
    root.parent.mkdir(parents=True, exist_ok=True)
    beside = os.access(root.parent, os.W_OK)
    place = root.with_name(f".{root.name}.opforge.lock") if beside else root / ".opforge.lock"
    try:
        with FileLock(place, timeout=_PATIENCE):
            yield
    except Timeout:
        raise OutputNotWritable(
            f"another build has been writing to {root} for {_PATIENCE:.0f} seconds",
            fix="wait for it, or choose another folder with -o",
        ) from None


@contextlib.contextmanager
def _telling(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, OutputNotWritable):
            raise
        raise OutputNotWritable(
            f"cannot write to {root}",
            found=f"{error.filename or root}: {error.strerror or error}",
            fix="choose another folder with -o, or make this one writable",
        ) from error
