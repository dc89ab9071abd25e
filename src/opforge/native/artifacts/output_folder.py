"""An output folder between builds and readers: its lock, and the journal of what is published.

    .opforge-x1/new/lib/libops.so    staged, not yet in place
    .opforge-x1/journal.json         what is to be renamed and removed: from now on it is decided

A build that is killed before there is a journal has changed nothing; one that is killed later is
finished by the next build, and until then its library is not loaded. A loaded library's first call
waits for this module, so it imports little.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

STAGE = ".opforge-"
JOURNAL = "journal.json"


def stages(root: Path) -> list[Path]:
    """What builds have left here, or are working on."""
    try:
        with os.scandir(root) as entries:
            return sorted(
                Path(entry.path)
                for entry in entries
                if entry.name.startswith(STAGE) and entry.is_dir(follow_symlinks=False)
            )
    except OSError:
        return []


def is_half_published(root: Path) -> bool:
    """Whether a build ended between two renames; asked with the lock held."""
    # `os.access` is False, and `Path.exists` raises, where another user may not look.
    return any(os.access(stage / JOURNAL, os.F_OK) for stage in stages(root))


@contextlib.contextmanager
def locked(root: Path, *, alone: bool, patience: float) -> Iterator[bool]:
    """Hold the folder's lock, alone or with other readers; False after so many seconds without it.

    The system takes it from a process that ends. The folder itself is locked, so no file is left
    behind; a file system that cannot lock is used without.
    """
    while True:
        try:
            folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            yield True
            return
        try:
            is_ours = _wait(folder, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, patience)
            # Another build may have made the folder for nothing, and removed it meanwhile.
            if not is_ours or _is_at(folder, root):
                yield is_ours
                return
        finally:
            os.close(folder)


def _is_at(folder: int, root: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(folder), root.stat())
    except OSError:
        return False


def _wait(folder: int, kind: int, patience: float) -> bool:
    latest = time.monotonic() + patience
    while not _try(folder, kind):
        if time.monotonic() > latest:
            return False
        time.sleep(0.005)
    return True


def _try(folder: int, kind: int) -> bool:
    try:
        fcntl.flock(folder, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # Some file systems have no locks.
        return True
    return True
