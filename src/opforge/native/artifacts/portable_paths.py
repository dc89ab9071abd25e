"""Source locations without the folders of the machine that builds.

/home/me/project/ops.py:12                             -> ops.py:12
/usr/lib/python3/site-packages/mylib/ops/silu.py:30    -> mylib/ops/silu.py:30
/home/me/project/ops/add/op.py:8, in a tree of ops     -> ops/add/op.py:8
"""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from typing import Any

from ...records import changed

# An absolute path, up to the line number after it.
_PLACE = re.compile(r"(/[^\s:()]+):(\d+)")


def shown(text: str) -> str:
    """A text with the locations in it shortened for readers on another machine."""
    return _PLACE.sub(lambda found: f"{_short(found[1])}:{found[2]}", text)


@functools.cache
def _short(file: str) -> str:
    path = Path(file)
    for root in _roots():
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return "/".join(path.parts[-_depth(path) :])


def _depth(path: Path) -> int:
    """How many parts of a path its module name has: 3 for `ops.add.op`."""
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == str(path):
            return name.count(".") + (2 if path.stem == "__init__" else 1)
    return 1


def _roots() -> list[Path]:
    """The folders on the import path, deepest first, and the current folder."""
    found = {Path(entry).resolve() for entry in [*sys.path, "."] if entry}
    return sorted(found - {Path("/")}, key=lambda p: len(p.parts), reverse=True)


def everywhere(value: Any) -> Any:
    """The same records with all locations shortened."""
    return changed(value, str, shown)
