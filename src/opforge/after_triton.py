"""Runs something when a program imports Triton, without importing it before."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

# Importing Triton imports it, and it imports the module of JITFunction.
_LAST = "triton.runtime.autotuner"


def after_triton(then: Callable[[], None]) -> None:
    """Call a function as soon as Triton is imported, or now."""
    if _LAST in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _AfterImport(then))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function after one module was imported, and is gone then."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _LAST:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._then)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, then: Callable[[], None]) -> None:
        self._loader, self._then = loader, then

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        # Whoever asks the module for its loader gets the real one.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._then()
