"""Writes the files that a build read as a depfile for make, Ninja and CMake."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ...errors import OutputNotWritable


def render(target: Path, files: Iterable[Path]) -> str:
    r"""A rule with one file per line.

    /out/share/ops/build.json: \
      /ops/add/op.py \
      /ops/common.py
    """
    names = sorted({_escaped(file) for file in files})
    return f"{_escaped(target)}: " + "".join(f"\\\n  {name} " for name in names).rstrip() + "\n"


def write_depfile(path: str, target: Path, files: Iterable[Path]) -> None:
    """Write the rule if it differs from the file."""
    text = render(target, files)
    place = Path(path)
    try:
        if not place.is_file() or place.read_text(encoding="utf-8") != text:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputNotWritable(
            f"cannot write the depfile {path}",
            found=error.strerror or str(error),
            fix="choose another path with --depfile",
        ) from error


def _escaped(path: Path) -> str:
    # Links are not resolved, because build tools compare names; `..` is.
    text = Path(os.path.normpath(path.absolute())).as_posix()
    return text.replace("$", "$$").replace(" ", "\\ ").replace("#", "\\#")
