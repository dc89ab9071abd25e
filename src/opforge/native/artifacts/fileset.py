"""Writes a build's files at once: all of them or none, and only those that changed.

Everything is first written to a hidden folder inside the output folder, and so on the same file
system; then a journal says what is to be done, and each file that differs is renamed into place. If
anything fails, earlier renames are undone; if the process is killed, the next build does the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ...errors import OutputNotWritable
from ...records import each, keep_to
from . import build_record as stamps
from .build_record import Stamp
from .output_folder import JOURNAL, STAGE, locked, stages
from .sums import sums_path, written_sums

# Seconds for another build to write its files, which takes it a fraction of one.
_PATIENCE = 60.0


@dataclass(frozen=True)
class Written:
    """What happened to the files, by their paths in the folder."""

    changed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()


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
    place = stamps.stamp_path(name)
    if stamp is not None:
        content[_checked(place)] = stamp.to_json()
        written = {path: hashlib.sha256(data).hexdigest() for path, data in content.items()}
        content[sums_path(name)] = written_sums(written)
    with _writing(root), _stage(root) as stage:
        before = None if stamp is None else stamps.read(root / place)
        changed = [path for path, data in content.items() if not _holds(root / path, data)]
        for path in changed:
            _write(stage / "new" / path, content[path])
        others = _of_others(root, place)
        gone = [] if before is None else _obsolete(root, before, {*content, *others})
        # Nobody has signed what is built now.
        signature = f"{sums_path(name)}.minisig"
        if sums_path(name) in changed and (root / signature).is_file():
            gone.append(signature)
        _put(root, stage, changed, gone)
    unchanged = tuple(path for path in content if path not in set(changed))
    return Written(tuple(changed), unchanged)


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


def _of_others(root: Path, place: str) -> set[str]:
    """The files of other libraries in the folder, which may share some with this one."""
    records = [path for path in root.glob(stamps.stamp_path("*")) if path != root / place]
    found = [stamps.read(path) for path in records]
    return {path for stamp in found if stamp is not None for path in stamp.written}


def _obsolete(root: Path, before: Stamp, needed: set[str]) -> list[str]:
    listed = ((p, digest) for p, digest in sorted(before.written.items()) if p not in needed)
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
    journal = stage / JOURNAL
    draft = journal.with_suffix(".draft")
    draft.write_text(json.dumps({"changed": changed, "gone": gone}))
    try:
        if changed or gone:
            draft.replace(journal)
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
        # It is undone here, so the next build must not do it.
        journal.unlink(missing_ok=True)
        for step in reversed(undo):
            with contextlib.suppress(OSError):
                step()
        raise
    for path in gone:
        _remove_empty(root, (root / path).parent)
    journal.unlink(missing_ok=True)


def clear_up(folder: str | os.PathLike[str]) -> None:
    """Finish or remove what builds that were killed have left in a folder."""
    root = Path(folder)
    if stages(root):
        with _writing(root), _stage(root):
            pass


def _finish(root: Path, stage: Path) -> None:
    """Publish the rest of a stage, if it was decided, and remove it; again if this is killed."""
    for path, is_new in _decided(stage):
        if not _is_inside(root, path):
            continue
        staged, target = stage / "new" / path, root / path
        if not is_new:
            target.unlink(missing_ok=True)
            _remove_empty(root, target.parent)
        elif staged.is_file() and not staged.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            staged.replace(target)
    # The journal goes first: without it, the rest is rubbish.
    (stage / JOURNAL).unlink(missing_ok=True)
    shutil.rmtree(stage)


def _decided(stage: Path) -> list[tuple[str, bool]]:
    """The paths of a journal, and whether they are new; it may be forged as any file."""
    try:
        content = json.loads((stage / JOURNAL).read_bytes())
        return [
            (path, key == "changed")
            for key in ("changed", "gone")
            for path in each(content, key, lambda path: keep_to(_ANY, path))
        ]
    except (OSError, ValueError, RecursionError):
        return []


_ANY = re.compile(r"[^\x00]+")


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
    """A folder to prepare files in, for one build at a time."""
    made = _missing(root)
    try:
        with _locked(root):
            for left in stages(root):
                _finish(root, left)
            with tempfile.TemporaryDirectory(dir=root, prefix=STAGE) as stage:
                yield Path(stage)
    finally:
        # Remove folders that were made for nothing; rmdir only takes empty ones.
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    while True:
        root.mkdir(parents=True, exist_ok=True)
        with locked(root, alone=True, patience=_PATIENCE) as is_ours:
            if not is_ours:
                raise OutputNotWritable(
                    f"another build has been writing to {root} for {_PATIENCE:.0f} seconds",
                    fix="wait for it, or choose another folder with -o",
                )
            if root.is_dir():
                yield
                return


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
