"""Runs something when a program imports Triton or a part of torch, without importing it before."""

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
    after_import(_LAST, then)


def after_import(module: str, then: Callable[[], None]) -> None:
    """Call a function as soon as a module is imported, or now."""
    if module in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _AfterImport(module, then))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function after one module was imported, and is gone then."""

    def __init__(self, module: str, then: Callable[[], None]) -> None:
        self._module, self._then = module, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        sys.meta_path.remove(self)
        spec = _spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._then)
        return spec


def _spec(
    fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> importlib.machinery.ModuleSpec | None:
    """What the other finders say, one of which may wait for the same module."""
    for finder in [*sys.meta_path]:
        found = finder.find_spec(fullname, path, target)
        if found is not None:
            return found
    return None


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
