"""Places in source files, and how they read without the folders of the machine that builds.

/home/me/project/ops.py:12                             -> ops.py:12
/usr/lib/python3/site-packages/mylib/ops/silu.py:30    -> mylib/ops/silu.py:30
/home/me/project/ops/add/op.py:8, in a tree of ops     -> ops/add/op.py:8
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The type of fields that hold `file:line` and nothing else.
Place = str


def short(place: Place) -> Place:
    """`file:line` for readers on another machine."""
    file, colon, line = place.rpartition(":")
    return f"{_short(file)}:{line}" if colon and file.startswith("/") else place


class Told(str):
    """A text for the person who builds, with places in full; `short` is for readers elsewhere."""

    __slots__ = ("short",)
    short: str

    def __new__(cls, text: str, short: str) -> Told:  # noqa: PYI034  # Self is of Python 3.11
        made = super().__new__(cls, text)
        made.short = short
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return Told, (str(self), self.short)


def told(write: Callable[[Callable[[Place], str]], str]) -> Told:
    """The text that `write` makes of places: `told(lambda at: f"used at {at(where)}")`."""
    return Told(write(str), write(short))


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
    entries = [Path(entry) for entry in [*sys.path, "."] if entry]
    # A file may be known by a path through a link, such as a .venv that several checkouts share.
    roots = {root for entry in entries for root in (entry.absolute(), entry.resolve())}
    return sorted(roots - {Path("/")}, key=lambda p: len(p.parts), reverse=True)


def shortened(value: Any) -> Any:
    """The same records with their fields of type `Place` short, and texts as told elsewhere.

    Texts are not searched for places: what looks like one may be a value that callers pass.
    """
    if isinstance(value, Told):
        return value.short
    if isinstance(value, tuple):
        return tuple(map(shortened, value))
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    different: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        held = getattr(value, field.name)
        new = short(held) if field.type == "Place" else shortened(held)
        if new != held:
            different[field.name] = new
    return dataclasses.replace(value, **different) if different else value
