"""`import helper` in a file of a tree: the `helper.py` beside it, as if the file were run alone.

The tree's own module is what the name stands for, so that nothing is executed twice: in
`ops/add/op.py`, `helper` is `ops.add.helper`. Other folders have other files of that name, so the
name lasts only while the file is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType


@contextlib.contextmanager
def siblings_importable(file: Path, package: str) -> Iterator[None]:
    """While `file` is imported as a module of `package`, the names beside it are modules."""
    finder = _Siblings(file.parent, package)
    finders: list[object] = [*sys.meta_path]
    # Where `sys.path` is searched, and ahead of all that it has: a script's own folder is its head.
    place = finders.index(PathFinder) if PathFinder in finders else len(finders)
    sys.meta_path.insert(place, finder)
    try:
        yield
    finally:
        # The file may have changed the list itself.
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(finder)
        for name in finder.made:
            sys.modules.pop(name, None)


class _Siblings(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, folder: Path, package: str) -> None:
        self._folder = folder
        self._package = package
        self.made: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top = fullname.partition(".")[0]
        known = self._has(fullname) if path is None else top in self.made
        if not known or importlib.util.find_spec(self._real(fullname)) is None:
            return None
        return ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        # Importing gives whatever stands here in the end.
        sys.modules[name] = importlib.import_module(self._real(name))
        self.made.append(name)

    def _real(self, name: str) -> str:
        return f"{self._package}.{name}"

    def _has(self, name: str) -> bool:
        folder = self._folder / name
        if folder.with_name(f"{name}.py").is_file() or (folder / "__init__.py").is_file():
            return True
        # As on `sys.path`, a folder without `__init__.py` comes after all that has one.
        return folder.is_dir() and PathFinder.find_spec(name) is None
