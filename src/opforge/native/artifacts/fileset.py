"""Writes a build's files at once: all of them or none, and only those that changed.

Everything is first written to a hidden folder inside the output folder, and so on the same file
system; then each file that differs is renamed into place. If anything fails, earlier renames are
undone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ...errors import OutputNotWritable
from . import build_record as stamps
from .build_record import Stamp

_STAGE = ".opforge-"


@dataclass(frozen=True)
class Written:
    """What happened to the files, by their paths in the folder."""

    changed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def write_output(
    folder: str | os.PathLike[str],
    files: Mapping[str, bytes],
    *,
    stamp: Stamp | None = None,
    name: str = "",
) -> Written:
    """Make `folder` hold `files`, given by relative paths, and leave all other files alone.

    With a stamp, which is written last to the record of library `name`, files that the previous
    record lists and that are not made any more are removed, unless somebody has changed them.

        made = stamp.make("dist", arguments, files_read)
        write_output("dist", {"include/ops.h": b"..."}, stamp=made, name="ops")
    """
    root = Path(folder)
    content = dict(sorted((_checked(path), data) for path, data in files.items()))
    before = None
    if stamp is not None:
        place = stamps.stamp_path(name)
        before = stamps.read(root / place)
        written = {path: hashlib.sha256(data).hexdigest() for path, data in content.items()}
        content[_checked(place)] = dataclasses.replace(stamp, written=written).to_json()
    with _writing(root), _stage(root) as stage:
        changed = [path for path, data in content.items() if not _holds(root / path, data)]
        for path in changed:
            _write(stage / "new" / path, content[path])
        gone = [] if before is None else _obsolete(root, before, content)
        _put(root, stage, changed, gone)
    unchanged = tuple(path for path in content if path not in set(changed))
    return Written(tuple(changed), unchanged, tuple(gone))


def check_writable(folder: str | os.PathLike[str]) -> None:
    """Raise `OutputNotWritable` before minutes of compiling, not after."""
    root = Path(folder)
    with _writing(root), _stage(root) as stage:
        (stage / "probe").write_bytes(b"")


def _checked(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise ValueError(f"{path!r} is outside the output folder")
    return str(PurePosixPath(path))


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    if ".so" in path.suffixes:
        # As linkers leave them: executable for whoever can read them.
        mode = path.stat().st_mode
        path.chmod(mode | (mode & 0o444) >> 2)


def _obsolete(root: Path, before: Stamp, content: Mapping[str, bytes]) -> list[str]:
    listed = ((p, digest) for p, digest in sorted(before.written.items()) if p not in content)
    return [p for p, digest in listed if _is_inside(root, p) and _still_has(root / p, digest)]


def _is_inside(root: Path, path: str) -> bool:
    """Whether a path that was read from disk stays below the folder, wherever links lead."""
    try:
        return (root / _checked(path)).resolve().is_relative_to(root.resolve())
    except (ValueError, OSError, RuntimeError):
        # It leaves the folder, no file can have such a name, or links go in a circle.
        return False


def _still_has(path: Path, digest: str) -> bool:
    try:
        return stamps.digest_of(path) == digest
    except OSError:
        return False


def _put(root: Path, stage: Path, changed: list[str], gone: list[str]) -> None:
    undo: list[Callable[[], object]] = []
    try:
        for path in changed:
            target = root / path
            undo += [folder.rmdir for folder in _missing(target.parent)]
            target.parent.mkdir(parents=True, exist_ok=True)
            undo.append(_kept(target, stage / "old" / path))
            (stage / "new" / path).replace(target)
        for path in gone:
            undo.append(_kept(root / path, stage / "old" / path))
            (root / path).unlink()
    except BaseException:
        for step in reversed(undo):
            with contextlib.suppress(OSError):
                step()
        raise
    for path in gone:
        _remove_empty(root, (root / path).parent)


def _kept(target: Path, copy: Path) -> Callable[[], object]:
    """Back up a file; returns the undo, which removes the file if there was none."""
    if not target.exists():
        return lambda: target.unlink(missing_ok=True)
    copy.parent.mkdir(parents=True, exist_ok=True)
    try:
        copy.hardlink_to(target)
    except OSError:
        # Some file systems have no hard links.
        shutil.copy2(target, copy)
    return lambda: copy.replace(target)


def _missing(folder: Path) -> list[Path]:
    """The folders that making this one makes, outermost first."""
    return [f for f in reversed([folder, *folder.parents]) if not f.exists()]


def _remove_empty(root: Path, folder: Path) -> None:
    while folder != root:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


@contextlib.contextmanager
def _stage(root: Path) -> Iterator[Path]:
    made = _missing(root)
    root.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=root, prefix=_STAGE) as stage:
            yield Path(stage)
    finally:
        # Remove folders that were made for nothing; rmdir only takes empty ones.
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()


@contextlib.contextmanager
def _writing(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, OutputNotWritable):
            raise
        at = error.filename or root
        raise OutputNotWritable(
            f"cannot write to {root}",
            found=f"{at}: {error.strerror or error}",
            fix="choose another folder with -o, or make this one writable",
        ) from error
