"""Finds the functools caches of host code: those that functions lead to, and all there are."""

from __future__ import annotations

import functools
import gc
import sys
import types
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from .host_files import is_leaf_file, is_leaf_module
from .kernels import instance_dict

CACHED: type[Any] = type(functools.cache(lambda: None))
_ABSENT = object()

# Who holds a cache, and under which name: a dict's entry, a class's attribute, a closure's cell.
Holder = tuple[Any, Any]


def reached(functions: Iterable[Any]) -> list[Holder]:
    """Where the code of these functions, and of those they reach, finds a cache."""
    walk = _Walk()
    for function in functions:
        walk.visit(function)
    return walk.run()


class _Walk:
    """Goes through functions, and the modules, classes and objects that they mention."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}
        self._waiting: list[Any] = []
        self._found: list[Holder] = []

    def run(self) -> list[Holder]:
        while self._waiting:
            self._open(self._waiting.pop())
        return self._found

    def visit(self, value: Any) -> None:
        if id(value) not in self._seen and type(value) not in _PLAIN:
            self._seen[id(value)] = value
            self._waiting.append(value)

    def _hold(self, owner: Any, name: Any, value: Any) -> None:
        if cache_in(value) is not None:
            self._found.append((owner, name))
        self.visit(value)

    def _open(self, value: Any) -> None:
        kind = type(value)
        if kind is types.FunctionType:
            self._function(value)
        elif kind is CACHED:
            if not is_leaf_file(_file_of(value)):
                met.add(value)
            self.visit(value.__wrapped__)
        elif issubclass(kind, type):
            self._class(value)
        elif (parts := _parts(kind)) is not None:
            for name in parts:
                self.visit(getattr(value, name, None))
        elif kind in {list, tuple, set, frozenset, dict}:
            self._container(value)
        elif not issubclass(kind, _CLOSED):
            # Among what objects hold are the functions of decorators, kernels and heuristics.
            self.visit(instance_dict(value))
            self.visit(kind)

    def _container(self, value: Any) -> None:
        if len(value) > _MOST_INSIDE:
            return
        if type(value) is dict:
            for key, one in [*value.items()]:
                self._hold(value, key, one)
        else:
            for one in [*value]:
                self.visit(one)

    def _class(self, cls: type[Any]) -> None:
        for base in type.__getattribute__(cls, "__mro__"):
            if not is_leaf_module(sys.modules.get(base.__module__)):
                for name, value in [*type.__getattribute__(base, "__dict__").items()]:
                    self._hold(base, name, value)

    def _function(self, function: types.FunctionType) -> None:
        # Of a decorator that is a leaf's, only what it decorates counts.
        is_leaf = is_leaf_file(function.__code__.co_filename)
        names = set() if is_leaf else _names(function.__code__)
        for cell in function.__closure__ or ():
            value = _contents(cell)
            if value is not _ABSENT:
                self._hold(cell, "cell_contents", value)
                self._through_module(value, names)
        for name in names:
            value = function.__globals__.get(name, _ABSENT)
            if value is not _ABSENT:
                self._hold(function.__globals__, name, value)
                self._through_module(value, names)
            # `import name` in the body.
            self._through_module(sys.modules.get(name), names)
        for one in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.visit(one)
        self.visit(vars(function))

    def _through_module(self, module: Any, names: set[str], through: tuple[Any, ...] = ()) -> None:
        """What code reads of a module: `module.name`, `package.module.name`."""
        if not isinstance(module, types.ModuleType) or is_leaf_module(module):
            return
        if module in through:
            return
        for name in names & vars(module).keys():
            value = vars(module)[name]
            self._hold(vars(module), name, value)
            self._through_module(value, names, (*through, module))


_PLAIN = frozenset({str, bytes, int, float, bool, type(None), types.BuiltinFunctionType})
# A trace that meets an operator adds the operator's function.
_CLOSED = (types.ModuleType, torch.Tensor, torch._ops.OperatorBase)
_PARTS: dict[type[Any], tuple[str, ...]] = {
    types.MethodType: ("__func__", "__self__"),
    functools.partial: ("func", "args", "keywords"),
    functools.cached_property: ("func",),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget",),
}
# Not a kernel's globals nor its parameters, which lead to all of its module.
_PARTS_OF_A_KERNEL = ("fn", "pre_run_hooks", "launch_metadata", "_repr")


def _parts(kind: type[Any]) -> tuple[str, ...] | None:
    return _PARTS_OF_A_KERNEL if issubclass(kind, JITFunction) else _PARTS.get(kind)


# A longer container is a table of data.
_MOST_INSIDE = 1000


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> set[str]:
    """All names that a function mentions, those of the functions in it included."""
    found = {*code.co_names}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
    return found


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return _ABSENT


def cache_in(value: Any) -> Any:
    """The cache that a class's or a module's entry is or contains; or None."""
    kind = type(value)
    if kind in {staticmethod, classmethod}:
        return cache_in(value.__func__)
    if kind in {property, functools.partial}:
        return cache_in(value.fget if kind is property else value.func)
    return value if kind in {CACHED, functools.cached_property} else None


# Looking through all objects takes 20 ms, so it is done again only when modules were loaded.
@functools.lru_cache(maxsize=1)
def all_caches(_loaded: int) -> weakref.WeakSet[Any]:
    # An object refers to its type. Asking every object for its type here takes twice as long.
    found = (one for one in gc.get_referrers(CACHED) if type(one) is CACHED)
    return weakref.WeakSet(one for one in found if not is_leaf_file(_file_of(one)))


# Those that code leads to, which may be younger.
met: weakref.WeakSet[Any] = weakref.WeakSet()


def _file_of(cached: Any) -> str:
    code = getattr(cached.__wrapped__, "__code__", None)
    return code.co_filename if code is not None else "<frozen"


def holders_of(caches: Sequence[Any]) -> list[Holder]:
    """Every name that caches have anywhere, where it can be replaced."""
    found: list[Holder] = []
    for holder in gc.get_referrers(*caches):
        if isinstance(holder, types.CellType):
            found.append((holder, "cell_contents"))
        elif isinstance(holder, dict):
            owner = _class_with(holder) or holder
            names = [name for name, value in holder.items() if any(value is c for c in caches)]
            found += [(owner, name) for name in names]
    return found


def _class_with(held: dict[Any, Any]) -> type[Any] | None:
    """The class whose dict this is; only the class itself may change it."""
    if "__module__" not in held or "__doc__" not in held:
        return None
    classes = (one for one in gc.get_referrers(held) if isinstance(one, type))
    return next((c for c in classes if vars(c).keys() == held.keys()), None)
