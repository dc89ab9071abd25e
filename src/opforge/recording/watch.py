"""Puts recorders between a program and Triton; launches of compiled graphs are Inductor's."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from .. import _compat
from .._compat import patches
from ..after_triton import after_import
from . import inductor
from .inductor_names import COMPILING, HEURISTICS
from .recorder import Recorder


class _State(threading.local):
    # While an autotuner measures, its launches are not the program's.
    measuring = False


_state = _State()
_recorders: tuple[Recorder, ...] = ()


def start(recorder: Recorder) -> None:
    """Let a recorder see every launch; Triton must be imported."""
    global _recorders  # noqa: PLW0603  # read at every launch
    _recorders = (*_recorders, recorder)
    inductor.watch(recorder.compiled_graphs)
    _compat.advice.ask_first(_CHOSEN, patches.AUTOTUNER_CHOICES)
    _compat.described.listen(recorder)
    _WATCH.__enter__()
    _await_inductor()


@functools.cache
def _await_inductor() -> None:
    """Also watch what a program imports later."""
    for module in (HEURISTICS, COMPILING):
        after_import(module, _refresh)


def _refresh() -> None:
    if _recorders:
        _WATCH.refresh()


def stop(recorder: Recorder) -> None:
    global _recorders  # noqa: PLW0603
    _recorders = tuple(r for r in _recorders if r is not recorder)
    inductor.unwatch(recorder.compiled_graphs)
    _WATCH.__exit__()
    _compat.described.listen_no_more(recorder)
    if not _recorders:
        _compat.advice.ask_no_more(patches.AUTOTUNER_CHOICES)


class _Chosen(_compat.advice.Adviser):
    """Hears what autotuners choose."""

    def chosen(self, tuner: Any, key: tuple[Any, ...], config: Any) -> None:
        for recorder in _recorders:
            recorder.chosen(tuner, key, config)


_CHOSEN = _Chosen()


def _watched() -> Iterator[patches.Replacement]:
    yield patches.LAUNCHES.by("run", _counted)
    yield patches.AUTOTUNER_CHOICES.by("_bench", _unwatched)
    yield from inductor.replacements()


_WATCH = patches.PatchScope(_watched)


def _counted(original: property) -> property:
    """Triton reads `compiled.run` at every launch: a wrapper around launches would cost more."""
    find = original.fget
    assert find is not None

    def run(self: Any) -> Any:
        found = find(self)
        if not _state.measuring:
            for recorder in _recorders:
                recorder.launched(self)
        return found

    return property(run)


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
