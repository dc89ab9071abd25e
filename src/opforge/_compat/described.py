"""Launches for a GPU that is not there: described to whoever listens, instead of made."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Protocol

from . import kernels, patches


class NeedsRealGpu(RuntimeError):
    """A question that only a real GPU can answer."""


class Listener(Protocol):
    """Is told of launches that are not made."""

    def described(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...

    def unmeasured(self, tuner: Any, key: tuple[Any, ...], config: Any) -> None: ...


_listeners: list[Listener] = []


def listen(listener: Listener) -> None:
    _listeners.append(listener)


def listen_no_more(listener: Listener) -> None:
    _listeners.remove(listener)


# Threads have one each, as they have targets.
_is_here: ContextVar[bool] = ContextVar("opforge_described", default=False)


@contextlib.contextmanager
def launches() -> Iterator[None]:
    """Describe this thread's launches, if somebody listens."""
    token = _is_here.set(True)
    try:
        with SCOPE:
            yield
    finally:
        _is_here.reset(token)


def is_heard() -> bool:
    """Whether the calling thread's launches are described to somebody."""
    return bool(_listeners) and _is_here.get()


class NotLaunched:
    """In place of a compiled kernel; `[grid]` of it is the same launch once more."""

    def __init__(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._launch = fn, args, kwargs
        self._tell()

    def _tell(self) -> None:
        if not _listeners:
            raise NeedsRealGpu("this kernel was described, not compiled: its GPU was not there")
        for listener in _listeners:
            listener.described(*self._launch)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *_args: self._tell()


def _run(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except NeedsRealGpu:
            if not _listeners or _state.tuning:
                raise
        return NotLaunched(self, args, kwargs)

    return run


def _item(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def getitem(self: Any, grid: Any) -> Any:
        return kernels.bound(self, grid) if is_heard() else original(self, grid)

    return getitem


class _TuningState(threading.local):
    # While an autotuner runs, its first launch tells it that there is no GPU.
    tuning = 0


_state = _TuningState()


def _tuner_run(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(self.configs) == 1:
            return original(self, *args, **kwargs)
        _state.tuning += 1
        try:
            return original(self, *args, **kwargs)
        except NeedsRealGpu:
            if not _listeners:
                raise
        finally:
            _state.tuning -= 1
        from . import autotuning
        from .compiled import first_config

        self.best_config = config = first_config(self, args, kwargs)
        key = autotuning.triton_key(self, args, kwargs)
        for listener in _listeners:
            listener.unmeasured(self, key, config)
        if config.pre_hook is not None:
            # It may set the blocks of descriptors, for which Triton specializes.
            named = dict(zip(self.arg_names, args, strict=False))
            config.pre_hook({**named, **kwargs, **config.all_kwargs()})
        return self.fn.run(*args, **kwargs, **config.all_kwargs())

    return run


def _classes() -> Iterator[type]:
    """Autotuners with a `run` of their own: Triton's, and those of packages."""
    from triton.runtime.autotuner import Autotuner

    waiting: list[type] = [Autotuner]
    for cls in waiting:
        waiting += cls.__subclasses__()
    return iter([cls for cls in dict.fromkeys(waiting) if "run" in vars(cls)])


def _made(original: Callable[..., Any]) -> Callable[..., Any]:
    """An `__init__` of autotuners, of which there may be new classes."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        SCOPE.refresh()

    return init


def _replacements() -> Iterator[patches.Replacement]:
    if kernels.load_triton():
        yield patches.TARGET_LAUNCHES.by("run", _run)
        yield patches.TARGET_ITEMS.by("__getitem__", _item)
        yield patches.TARGET_AUTOTUNERS.by("__init__", _made)
        for owner in _classes():
            yield patches.TARGET_AUTOTUNERS.by("run", _tuner_run, owner)


SCOPE = patches.PatchScope(_replacements)
