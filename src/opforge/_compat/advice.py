"""What autotuners are told to choose, and what they have chosen.

Packages have autotuners of their own: subclasses whose `run` replaces Triton's, with a database
for a cache. All of them test `key in self.cache` before they measure, so that is where they meet
advice.
"""

from __future__ import annotations

import copy
import inspect
from types import FrameType
from typing import Any

from . import patches


class Adviser:
    """Knows configurations, or wants to know which ones were chosen."""

    def advise(self, tuner: Any, key: tuple[Any, ...]) -> Any:  # noqa: ARG002
        """A configuration; None lets the autotuner measure."""
        return None

    def chosen(self, tuner: Any, key: tuple[Any, ...], config: Any) -> None:
        """Told once for each key and edition."""


class _AdviceState:
    def __init__(self) -> None:
        self.advisers: dict[patches.Patch, Adviser] = {}
        # A new one makes all earlier advice invalid.
        self.edition = 0


_state = _AdviceState()


def ask_first(adviser: Adviser, patch: patches.Patch = patches.AUTOTUNER_ADVICE) -> None:
    """Let every autotuner ask for a configuration before it measures."""
    _state.advisers[patch] = adviser
    patches.install(patch.by("cache", lambda _original: _CACHE))
    ask_again()


def ask_no_more(patch: patches.Patch = patches.AUTOTUNER_ADVICE) -> None:
    """Let autotuners measure again; they keep what they have measured."""
    _state.advisers.pop(patch, None)
    patches.undo(patch)
    ask_again()


def ask_again() -> None:
    """Let autotuners forget the advice that they were given."""
    _state.edition += 1


def _read(tuner: Any) -> Any:
    found = vars(tuner)["cache"]
    if type(found) is not _Choices:
        found = vars(tuner)["cache"] = _Choices(tuner, found)
    return found


def _write(tuner: Any, value: Any) -> None:
    vars(tuner)["cache"] = value


# In front of what an autotuner keeps under that name.
_CACHE = property(_read, _write)


def _pruned(tuner: Any, asked: FrameType | None) -> Any:
    """The autotuner with the configurations that its pruning allows for the launch under way."""
    if not getattr(tuner, "early_config_prune", None):
        return tuner
    # `run` asks its cache, and has the keywords that pruning is given.
    caller = asked and asked.f_back
    kwargs = {} if caller is None else caller.f_locals.get("kwargs", {})
    pruned = copy.copy(tuner)
    # What it estimates decides what is fast, not what is right.
    pruned.perf_model = None
    pruned.configs = pruned.prune_configs(dict(kwargs))
    return pruned


class _Choices(dict[Any, Any]):
    """An autotuner's choices by key; it tests `key in cache` before it reads one."""

    def __init__(self, tuner: Any, own: Any) -> None:
        super().__init__()
        # Kept for keys that get no advice. It need not be a dict.
        self._own = own
        self._tuner = tuner
        self._edition = _state.edition

    def __contains__(self, key: object) -> bool:
        if self._edition != _state.edition:
            self.clear()
            self._edition = _state.edition
        if super().__contains__(key):
            return True
        assert isinstance(key, tuple)
        asking = _pruned(self._tuner, inspect.currentframe())
        advice = (adviser.advise(asking, key) for adviser in _state.advisers.values())
        found = next(filter(None, advice), None) or self._own.get(key)
        if found is None:
            return False
        self._take(key, found)
        return True

    def __setitem__(self, key: Any, config: Any) -> None:
        self._own[key] = config
        self._take(key, config)

    def _take(self, key: Any, config: Any) -> None:
        super().__setitem__(key, config)
        for adviser in _state.advisers.values():
            adviser.chosen(self._tuner, key, config)
