"""Where a package is written: checked before the build, written after it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from ..errors import BadOption


def read_path(path: Any) -> Path:
    """The package's path; AOTInductor requires the suffix."""
    place = Path(path)
    if place.suffix != ".pt2":
        raise BadOption(
            f"a package's name must end in .pt2, got {str(path)!r}",
            fix=f"{place.with_suffix('.pt2')}",
        )
    if place.is_dir():
        raise BadOption(f"{place} is a folder", fix=f"{place / 'model.pt2'}")
    # Checked now, because compiling may take minutes.
    above = next(folder for folder in place.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        why = "not writable" if above.is_dir() else "not a folder"
        raise _not_written(place, f"{above}, which is {why}")
    return place


def put(built: Path, place: Path) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(built, place)
    except OSError as error:
        raise _not_written(place, f"{type(error).__name__}: {error}") from error


def _not_written(place: Path, found: str) -> BadOption:
    fix = "choose a folder that you can write to"
    return BadOption(f"{place} cannot be written", found=found, fix=fix)
