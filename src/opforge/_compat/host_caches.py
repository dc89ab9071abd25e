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
import gc
import logging
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from . import kernels, patches, reach, tracing

CACHED: type[Any] = type(functools.cache(lambda: None))

# Who holds a cache, and under which name: a dict's entry, a class's attribute, a closure's cell.
Holder = tuple[Any, Any]


class HostCaches:
    """The caches that some functions reach, and how to pass them by."""

    def __init__(self) -> None:
        self._functions: list[Any] = []
        self._loaded = 0
        # The holder is kept, so that no other gets its id.
        self.holders: dict[tuple[int, Any], Holder] = {}

    def include(self, function: Any) -> None:
        """Also pass by the caches that another function reaches."""
        if not any(function is known for known in self._functions):
            self._functions.append(function)
            self._loaded = self._loaded or len(sys.modules)
            self._add(_Walk(function).holders)

    def chase(self, caches: Sequence[Any]) -> None:
        """Pass these by, too, whatever name the body has for them."""
        self._add(_holders_of(caches))

    @contextlib.contextmanager
    def passed_by(self) -> Iterator[None]:
        """Let this thread compute what the caches would answer, once in this context."""
        if self._loaded != len(sys.modules):
            # Bodies import, too.
            for function in self._functions:
                self._add(_Walk(function).holders)
            self._loaded = len(sys.modules)
        token = _memory.set({})
        _passing.append(self)
        try:
            with _PASSED_BY:
                yield
        finally:
            _passing.remove(self)
            _memory.reset(token)

    def _add(self, holders: Iterable[Holder]) -> None:
        self.holders.update(((id(owner), name), (owner, name)) for owner, name in holders)
        if self in _passing:
            _PASSED_BY.refresh()


_passing: list[HostCaches] = []


def _replacements() -> Iterator[patches.Replacement]:
    for owner, name in [holder for caches in [*_passing] for holder in caches.holders.values()]:
        try:
            value = patches.read(owner, name)
        except (AttributeError, KeyError, ValueError):  # the name is gone
            continue
        if _has_cache(value):
            yield patches.Replacement(patches.HOST_CACHE, owner, name, _passing_by)


_PASSED_BY = patches.PatchScope(_replacements)


class _Walk(reach.Walk):
    """Where the code of a function, and of those that it reaches, finds a cache.

    Objects and classes are followed whole, as packages look their backends up by computed names.
    """

    most_objects = sys.maxsize

    def __init__(self, function: Any) -> None:
        self.holders: list[Holder] = []
        super().__init__(function, max_depth=sys.maxsize)
        _met.update(v for v, _ in self._seen.values() if type(v) is CACHED and _is_watched(v))

    def _key(self, value: Any) -> tuple[int, int]:
        return id(value), 0

    def named(self, holder: Any, name: Any, value: Any, **follow: Any) -> None:
        if _has_cache(value):
            self.holders.append((holder, name))
        super().named(holder, name, value, **follow)

    def _object(self, value: Any, cost: int) -> None:
        if not issubclass(type(value), _CLOSED):
            # Among what objects hold are the functions of decorators, tuners and heuristics.
            self._visit(kernels.instance_dict(value), cost=cost)
            self._visit(type(value), cost=cost)

    def _own(self, owner: Any) -> None:
        self._visit(owner, cost=0)

    def _members(self, cls: type[Any], owner: Any, *, is_used: bool = True) -> None:
        del owner, is_used
        own, *bases = reach.mro(cls)
        for base in bases:
            self._visit(base)
        if not reach.is_foreign(own):
            for name, member in [*reach.class_dict(own).items()]:
                self.named(own, name, member)


# A trace calls nothing of a kernel itself, and adds the function of an operator that it meets. A
# logger leads to all loggers.
_CLOSED = (JITFunction, torch.Tensor, torch._ops.OperatorBase, logging.Logger)


def _has_cache(value: Any) -> bool:
    """Whether a class's or a module's entry is or contains a cache."""
    while id(type(value)) in _AROUND:
        value = getattr(value, _AROUND[id(type(value))])
    return type(value) is CACHED or type(value) is functools.cached_property


# By id, because hashing a class may run its metaclass's code.
_AROUND = {
    id(staticmethod): "__func__",
    id(classmethod): "__func__",
    id(property): "fget",
    id(functools.partial): "func",
}


def _is_watched(cached: Any) -> bool:
    code = getattr(cached.__wrapped__, "__code__", None)
    return code is not None and not reach.is_foreign_file(code.co_filename)


# Looking through all objects takes 20 ms, so it is done again only when modules were loaded.
@functools.lru_cache(maxsize=1)
def _all_caches(_loaded: int) -> weakref.WeakSet[Any]:
    # An object refers to its type. Asking every object for its type here takes twice as long.
    caches = (value for value in gc.get_referrers(CACHED) if type(value) is CACHED)
    return weakref.WeakSet(filter(_is_watched, caches))


# Those that code leads to, which may be younger.
_met: weakref.WeakSet[Any] = weakref.WeakSet()


def _holders_of(caches: Sequence[Any]) -> Iterator[Holder]:
    """Every name that caches have anywhere, where it can be replaced."""
    for holder in gc.get_referrers(*caches):
        if isinstance(holder, types.CellType):
            yield holder, "cell_contents"
        elif isinstance(holder, dict):
            owner = _class_with(holder) or holder
            for name in [n for n, value in holder.items() if any(value is c for c in caches)]:
                yield owner, name


def _class_with(held: dict[Any, Any]) -> type[Any] | None:
    """The class whose dict this is; only the class itself may change it."""
    if "__module__" not in held or "__doc__" not in held:
        return None
    classes = (value for value in gc.get_referrers(held) if isinstance(value, type))
    return next((c for c in classes if vars(c).keys() == held.keys()), None)


class Answered:
    """Which caches of host code answered while it was watching, although a trace passes them by."""

    def __init__(self) -> None:
        watched = {*_all_caches(len(sys.modules)), *_met}
        self._before = {cached: (_calls(cached), cached.cache_info()) for cached in watched}

    def caches(self) -> list[Any]:
        # There are fewer calls than before if the body has emptied a cache.
        answered = [cached for cached, (calls, _) in self._before.items() if _calls(cached) > calls]
        for cached in answered:
            if cached.cache_info().misses != self._before[cached][1].misses:
                # It has kept what belongs to a trace.
                cached.cache_clear()
        return answered


# How often a thread that does not trace has called a cache by a replaced name.
_handed_on: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def _calls(cached: Any) -> int:
    info = cached.cache_info()
    return int(info.hits + info.misses - _handed_on.get(cached, 0))


def describe(cached: Any) -> str:
    """`sm_count (file:line)`."""
    return f"{cached.__qualname__} ({reach.place_of(cached.__wrapped__)})"


def _passing_by(value: Any) -> Any:
    """What stands in a cache's place during a trace."""
    kind = type(value)
    if kind in {staticmethod, classmethod}:
        return kind(_passing_by(value.__func__))
    if kind is property:
        return property(_passing_by(value.fget), value.fset, value.fdel, value.__doc__)
    if kind is functools.partial:
        return functools.partial(_passing_by(value.func), *value.args, **value.keywords)
    return _property_of(value) if kind is functools.cached_property else _function_of(value)


def _function_of(cached: Any) -> Callable[..., Any]:
    @functools.wraps(cached)
    def call(*args: Any, **kwargs: Any) -> Any:
        memory = _memory.get()
        if memory is None:
            _handed_on[cached] = _handed_on.get(cached, 0) + 1
            return cached(*args, **kwargs)
        key = id(cached), _key(args), _key(tuple(kwargs.items()))
        return _remembered(memory, key, cached.__wrapped__, *args, **kwargs)

    for name in ("cache_info", "cache_clear", "cache_parameters"):
        setattr(call, name, getattr(cached, name))
    return call


def _property_of(cached: functools.cached_property[Any]) -> property:
    """It is asked before the object's own dict, which holds what was cached."""
    name = cached.attrname or ""

    def get(owner: Any) -> Any:
        memory = _memory.get()
        if memory is None:
            held = vars(owner)
            return held[name] if name in held else cached.__get__(owner)
        return _remembered(memory, (id(cached), id(owner)), cached.func, owner)

    return property(
        get,
        lambda owner, value: vars(owner).__setitem__(name, value),
        lambda owner: vars(owner).__delitem__(name),
        cached.__doc__,
    )


# What a trace remembers, with the arguments, so that no other object gets the id of one.
_Memory = dict[Any, tuple[Any, Any]]
_memory: contextvars.ContextVar[_Memory | None] = contextvars.ContextVar(
    "opforge_host_caches", default=None
)


def _remembered(
    memory: _Memory, key: Any, compute: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    if key not in memory:
        value = compute(*args, **kwargs)
        tracing.keep(value)
        memory[key] = value, args
    return memory[key][0]


def _key(value: Any) -> Any:
    """Something equal for equal arguments; hashing a symbolic size would make it a constant."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return type(value), str(value)
    if isinstance(value, tuple):
        return type(value), tuple(map(_key, value))
    return type(value), value
