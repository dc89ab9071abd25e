"""Caches of host code, passed by while a thread traces.

What `functools.cache`, `lru_cache` and `cached_property` remember from outside a trace (108
multiprocessors) would become a constant of the library, and what they remember from inside it would
outlive the trace. So for the time of a trace, every name under which a body can reach one stands
for a function that remembers things for that trace alone. The caches themselves stay as they are.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from . import host_walk, patches, tracing
from .host_walk import Holder, cache_in

_ABSENT = object()


class HostCaches:
    """The caches that some functions reach, and how to pass them by."""

    def __init__(self) -> None:
        self._functions: list[Any] = []
        self._scopes: dict[Holder, patches.PatchScope] = {}
        self._loaded = 0
        self._entered: contextlib.ExitStack | None = None

    def include(self, function: Any) -> None:
        """Also pass by the caches that another function reaches."""
        if not any(function is known for known in self._functions):
            self._functions.append(function)
            self._loaded = self._loaded or len(sys.modules)
            self._add(host_walk.reached([function]))

    def chase(self, caches: Sequence[Any]) -> None:
        """Pass these by, too, whatever name the body has for them."""
        self._add(host_walk.holders_of(caches))

    @contextlib.contextmanager
    def passed_by(self) -> Iterator[None]:
        """Let this thread compute what the caches would answer, once in this context."""
        if self._loaded != len(sys.modules):
            # Bodies import, too.
            self._add(host_walk.reached(self._functions))
            self._loaded = len(sys.modules)
        token = _memory.set({})
        try:
            with contextlib.ExitStack() as self._entered:
                for scope in self._scopes.values():
                    self._entered.enter_context(scope)
                yield
        finally:
            self._entered = None
            _memory.reset(token)

    def _add(self, found: Iterable[Holder]) -> None:
        for owner, name in found:
            key = id(owner), name
            if key not in self._scopes:
                self._scopes[key] = _scopes.setdefault(key, _scope(owner, name))
                if self._entered is not None:
                    self._entered.enter_context(self._scopes[key])


# One for each name, so that the last of several traces takes the replacement back. A scope keeps
# the owner, so that no other object gets its id.
_scopes: weakref.WeakValueDictionary[tuple[int, Any], patches.PatchScope] = (
    weakref.WeakValueDictionary()
)
_memory: contextvars.ContextVar[dict[Any, Any] | None] = contextvars.ContextVar(
    "opforge_host_caches", default=None
)


def _scope(owner: Any, name: Any) -> patches.PatchScope:
    made = patches.Replacement(patches.HOST_CACHE, owner, name, _passing_by)
    return patches.PatchScope(lambda: [made] if _is_there(owner, name) else [])


def _is_there(owner: Any, name: Any) -> bool:
    """Whether a name stands for a cache still."""
    try:
        return cache_in(patches.read(owner, name)) is not None
    except (AttributeError, KeyError, ValueError):
        return False


# How often a thread that does not trace has called a cache by a replaced name.
_handed_on: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


class Answered:
    """Which caches of host code answered while it was watching, although a trace passes them by."""

    def __init__(self) -> None:
        watched = {*host_walk.all_caches(len(sys.modules)), *host_walk.met}
        self._before = {cached: (_calls(cached), cached.cache_info()) for cached in watched}

    def caches(self) -> list[Any]:
        # There are fewer calls than before if the body has emptied a cache.
        found = [cached for cached, (calls, _) in self._before.items() if _calls(cached) > calls]
        for cached in found:
            if cached.cache_info().misses != self._before[cached][1].misses:
                # It has kept what belongs to a trace.
                cached.cache_clear()
        return found


def _calls(cached: Any) -> int:
    info = cached.cache_info()
    return int(info.hits + info.misses - _handed_on.get(cached, 0))


def describe(cached: Any) -> str:
    """`sm_count (file:line)`."""
    code = cached.__wrapped__.__code__
    return f"{cached.__qualname__} ({code.co_filename}:{code.co_firstlineno})"


def _passing_by(value: Any) -> Any:
    """What stands in a cache's place during a trace."""
    kind = type(value)
    if kind in {staticmethod, classmethod}:
        return kind(_passing_by(value.__func__))
    if kind is property:
        return property(_passing_by(value.fget), value.fset, value.fdel, value.__doc__)
    if kind is functools.partial:
        return functools.partial(_passing_by(value.func), *value.args, **value.keywords)
    return _PropertyPassedBy(value) if kind is functools.cached_property else _function_of(value)


def _function_of(cached: Any) -> Callable[..., Any]:
    @functools.wraps(cached)
    def call(*args: Any, **kwargs: Any) -> Any:
        memory = _memory.get()
        if memory is None:
            _handed_on[cached] = _handed_on.get(cached, 0) + 1
            return cached(*args, **kwargs)
        key = id(cached), _key(args), _key(tuple(kwargs.items()))
        if key not in memory:
            memory[key] = cached.__wrapped__(*args, **kwargs)
            tracing.keep(memory[key])
        return memory[key]

    for name in ("cache_info", "cache_clear", "cache_parameters"):
        setattr(call, name, getattr(cached, name))
    return call


class _PropertyPassedBy:
    """A data descriptor: it is asked before the object's own dict, which holds what was cached."""

    def __init__(self, cached: functools.cached_property[Any]) -> None:
        self._cached = cached
        self.__doc__ = cached.__doc__

    def __get__(self, owner: Any, cls: Any = None) -> Any:
        if owner is None:
            return self
        memory = _memory.get()
        if memory is None:
            found = vars(owner).get(self._name, _ABSENT)
            return self._cached.__get__(owner, cls) if found is _ABSENT else found
        key = self._cached, id(owner)
        if key not in memory:
            # The owner is kept, so that no other object gets its id.
            memory[key] = self._cached.func(owner), owner
            tracing.keep(memory[key][0])
        return memory[key][0]

    def __set__(self, owner: Any, value: Any) -> None:
        vars(owner)[self._name] = value

    def __delete__(self, owner: Any) -> None:
        del vars(owner)[self._name]

    @property
    def _name(self) -> str:
        return self._cached.attrname or ""


def _key(value: Any) -> Any:
    """Something equal for equal arguments; hashing a symbolic size would make it a constant."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return type(value), str(value)
    if isinstance(value, tuple):
        return type(value), tuple(map(_key, value))
    return type(value), value
