"""Runs something when a program imports Triton or a part of torch, without importing it before."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Then = Callable[[], None]


def after_triton(then: Then) -> None:
    """Call a function as soon as `import triton` has ended, or now.

    Not in the middle of it: what opforge imports there of Triton would meet packages that have not
    ended, and get `triton.runtime.driver` the module for `driver` the object in it.
    """
    after_import("triton", then)


def after_import(module: str, then: Then) -> None:
    """Call a function as soon as a module is imported, or now."""
    if module in sys.modules:
        then()
        return
    _waiting.setdefault(module, []).append(then)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


_waiting: dict[str, list[Then]] = {}
# What is to be called, and the modules of opforge that have to end before: one of them may be the
# first to import Triton, and what is called needs it whole.
_due: list[Then] = []
_own: list[str] = []


class _Finder(importlib.abc.MetaPathFinder):
    """Has functions called after modules are imported, and is gone when all of them are.

    Who only looks for a module, as `importlib.util.find_spec` does, changes nothing.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        is_own = "triton" in _waiting and fullname.startswith("opforge.")
        if fullname not in _waiting and not is_own:
            return None
        for finder in [*sys.meta_path]:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


_FINDER = _Finder()


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        # Whoever asks the module for its loader gets the real one.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        name = module.__name__
        own = [name] if name.startswith("opforge.") else []
        _own.extend(own)
        try:
            self._loader.exec_module(module)
        finally:
            for each in own:
                _own.remove(each)
        _due.extend(_waiting.pop(name, []))
        if not _waiting and _FINDER in sys.meta_path:
            sys.meta_path.remove(_FINDER)
        while _due and not _own:
            _due.pop(0)()
