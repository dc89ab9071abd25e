"""Where a package is written: checked before the build, written after it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from ..errors import BadPackagePath


def read_path(path: Any) -> Path:
    """The package's path; AOTInductor requires the suffix."""
    place = Path(path)
    if place.suffix != ".pt2":
        raise BadPackagePath(
            f"a package's name must end in .pt2, got {str(path)!r}",
            fix=f"{place.with_suffix('.pt2')}",
        )
    if place.is_dir():
        raise BadPackagePath(f"{place} is a folder", fix=f"{place / 'model.pt2'}")
    # Checked now, because compiling may take minutes.
    above = next(folder for folder in place.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise BadPackagePath(
            f"{place} cannot be written",
            found=f"{above}, which is {'not writable' if above.is_dir() else 'not a folder'}",
            fix="choose a folder that you can write to",
        )
    return place


def put(built: Path, place: Path) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(built, place)
    except OSError as error:
        raise BadPackagePath(
            f"{place} cannot be written",
            found=f"{type(error).__name__}: {error}",
            fix="choose a folder that you can write to",
        ) from error
