"""Puts recorders between a program and Triton: `kernel[grid](...)` ends in `JITFunction.run`.

Launches of compiled graphs end in Inductor's `CachingAutotuner.run`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from .. import _compat
from .._compat import patches
from ..after_triton import after_import
from . import inductor
from .recorder import Recorder


class _State(threading.local):
    # While an autotuner measures, its launches are not the program's.
    measuring = False


_state = _State()
_recorders: tuple[Recorder, ...] = ()
# Autotuners whose choices have been looked at, by id: a set of weak references takes 0.5 us.
_asked: dict[int, Any] = {}


def start(recorder: Recorder) -> None:
    """Let a recorder see every launch; Triton must be imported."""
    global _recorders  # noqa: PLW0603  # read at every launch
    _recorders = (*_recorders, recorder)
    _asked.clear()
    inductor.watch(recorder.compiled_graphs)
    _WATCH.__enter__()
    _await_inductor()


@functools.cache
def _await_inductor() -> None:
    """Also watch what a program imports later."""
    for module in (inductor.HEURISTICS, inductor.COMPILING):
        after_import(module, _refresh)


def _refresh() -> None:
    if _recorders:
        _WATCH.refresh()


def stop(recorder: Recorder) -> None:
    global _recorders  # noqa: PLW0603
    _recorders = tuple(r for r in _recorders if r is not recorder)
    inductor.unwatch(recorder.compiled_graphs)
    _WATCH.__exit__()


def _watched() -> Iterator[patches.Replacement]:
    yield patches.LAUNCHES.by("run", _watched_run)
    yield patches.AUTOTUNER_CHOICES.by("run", _watched_tuner)
    yield patches.AUTOTUNER_CHOICES.by("_bench", _unwatched)
    yield from inductor.replacements()


_WATCH = patches.PatchScope(_watched)


def _watched_run(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            compiled = original(self, *args, **kwargs)
        except Exception as error:
            if not _is_absent(error):
                raise
            for recorder in _recorders:
                recorder.described(self, args, kwargs)
            return None
        if compiled is not None and not _state.measuring:
            for recorder in _recorders:
                recorder.launched(self, compiled, args, kwargs)
        return compiled

    return run


def _is_absent(error: Exception) -> bool:
    """Whether a launch failed because it is traced for a GPU that is not there."""
    # By name: the module of the exception is imported only where there is a target.
    return type(error).__name__ == "NeedsRealGpu"


def _watched_tuner(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        known = len(self.cache)
        try:
            result = original(self, *args, **kwargs)
        except Exception as error:
            if not _is_absent(error):
                raise
            config = _compat.compiled.first_config(self, args, kwargs)
            for recorder in _recorders:
                recorder.miss(_compat.kernels.innermost(self), _FIRST)
            return self.fn.run(*args, **kwargs, **config.all_kwargs())
        if len(self.cache) != known or id(self) not in _asked:
            _asked[id(self)] = self
            for recorder in _recorders:
                recorder.chosen(self, _compat.kernels.innermost(self))
        return result

    return run


_FIRST = (
    "its autotuner has no GPU to measure on, so only its first configuration was recorded; "
    "record on a GPU to get the one that it chooses"
)


def _unwatched(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def bench(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = _state.measuring
        _state.measuring = True
        try:
            return original(self, *args, **kwargs)
        finally:
            _state.measuring = before

    return bench
