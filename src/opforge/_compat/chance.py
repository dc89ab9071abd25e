"""Clocks and random numbers: what a function can get that differs from call to call."""

from __future__ import annotations

import builtins
import contextlib
import contextvars
import os
import random
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from . import patches
from .process_state import host_line


@contextlib.contextmanager
def clock_shifted(seconds: int) -> Iterator[None]:
    """Let this thread's clocks be ahead by so many seconds."""
    token = _ahead.set(seconds)
    try:
        with _CLOCKS:
            yield
    finally:
        _ahead.reset(token)


_ahead: contextvars.ContextVar[int] = contextvars.ContextVar("opforge_clock", default=0)


def _shifted(original: Callable[[], Any]) -> Callable[[], Any]:
    unit = 10**9 if original.__name__.endswith("_ns") else 1

    def clock() -> Any:
        return original() + _ahead.get() * unit

    return clock


_CLOCKS = patches.PatchScope(
    lambda: [patches.CLOCK.by(name, _shifted) for name in patches.CLOCK.names]
)


def random_state() -> Any:
    """Compares equal if nobody has drawn from the common generators in between."""
    numpy = sys.modules.get("numpy.random")
    state = numpy.get_state(legacy=False)["state"] if numpy is not None else None
    return random.getstate(), state and (state["pos"], state["key"].tobytes())


@contextlib.contextmanager
def noted(note: Callable[[str], None]) -> Iterator[None]:
    """Call `note` with what host code on this thread asks for: "the clock at file:line".

    Cython's functions cannot be seen, among them numpy's generators.
    """
    before = sys.getprofile()

    def profile(frame: types.FrameType, event: str, function: Any) -> None:
        if event == "c_call":
            asked = _asked(function)
            where = host_line(frame) if asked else ""
            if where:
                note(f"{asked} at {where}")

    sys.setprofile(profile)
    try:
        yield
    finally:
        if before is None or callable(before):
            sys.setprofile(before)
        else:
            # Until Python 3.11 this is cProfile's profiler itself, which is not a function.
            before.enable()


def _asked(function: Any) -> str:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, random.Random) or function is os.urandom:
        return "a random number"
    if owner is time:
        return "the clock"
    return "id()" if function is builtins.id else ""
