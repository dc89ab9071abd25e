"""Temporary folders of builds, which outlive a build that is killed, but not the next one."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .output_folder import locked

# Seconds. A folder is made a moment before it is locked, and must not be taken for a dead one.
_TOO_YOUNG = 60


@contextlib.contextmanager
def scratch(purpose: str) -> Iterator[Path]:
    """A folder for as long as it is used; first those of processes that were killed are removed."""
    prefix = f"opforge-{purpose}-"
    _remove_dead(Path(tempfile.gettempdir()), prefix)
    with tempfile.TemporaryDirectory(prefix=prefix) as made:
        folder = Path(made)
        with locked(folder, alone=True, patience=0):
            yield folder


def _remove_dead(place: Path, prefix: str) -> None:
    with contextlib.suppress(OSError):
        for folder in sorted(place.glob(f"{prefix}*")):
            if not folder.is_symlink() and _is_old_and_ours(folder):
                with locked(folder, alone=True, patience=0) as is_dead:
                    if is_dead:
                        shutil.rmtree(folder, ignore_errors=True)


def _is_old_and_ours(folder: Path) -> bool:
    found = folder.stat()
    return found.st_uid == os.geteuid() and time.time() - found.st_mtime > _TOO_YOUNG
