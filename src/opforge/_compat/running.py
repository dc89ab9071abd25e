"""Calls of an op that other threads are in, found on their stacks: a call itself pays nothing."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any

from .dispatcher import OpOverload, OpOverloadPacket, pass_through

# torch 2.13: both begin as Python functions, whose frames stay while C++ runs.
_CALLS = {OpOverload.__call__.__code__, OpOverloadPacket.__call__.__code__}


def is_called_elsewhere(overload: Any, namespaces: Collection[dict[str, Any]]) -> bool:
    """Whether another thread calls an op, whose own functions have these global variables.

    C++ that calls a kernel without Python above or below it is not seen.
    """
    handles = (overload, overload.overloadpacket)
    own = {id(namespace) for namespace in namespaces}
    here = threading.get_ident()
    stacks = [frame for thread, frame in _current_frames().items() if thread != here]
    try:
        return any(_is_call(frame, handles, own) for top in stacks for frame in _stack(top))
    except _NotAFrame:
        return True


_reading = threading.Lock()


def _current_frames() -> dict[int, FrameType]:
    """The top of every thread's stack.

    Python 3.11 holds a lock of the interpreter meanwhile. A collection of garbage may then let
    another thread run, which waits for that lock for ever.
    """
    with _reading:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if was_enabled:
                gc.enable()


class Gate:
    """A lock for `waiting` that all but one thread wait for, though not for ever.

    They may hold what that thread needs.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._keeper = threading.get_ident()
        self._is_open = threading.Event()

    def open(self) -> None:
        self._is_open.set()

    def __enter__(self) -> None:
        if threading.get_ident() != self._keeper:
            self._is_open.wait(self._seconds)

    def __exit__(self, *_: object) -> None:
        pass


def wait_while(is_busy: Callable[[], bool], seconds: float) -> None:
    """Wait for what other threads do, but not for ever: they may wait for this one."""
    latest = time.monotonic() + seconds
    while is_busy() and time.monotonic() < latest:
        time.sleep(0.001)


class _NotAFrame(Exception):
    """A stack could not be read: whoever asks may ask again."""


def _stack(top: FrameType | None) -> list[FrameType]:
    frames = []
    while top is not None:
        # Python 3.11, once in many thousand stacks, gives the code of a function that returns.
        if not isinstance(top, FrameType):
            raise _NotAFrame
        frames.append(top)
        if top.f_code is pass_through.__code__:
            # This call has not begun; it has a frame for the handle, and one that stands in.
            frames = frames[:0]
            top = top.f_back and top.f_back.f_back
        top = top and top.f_back
    return frames


def _is_call(frame: FrameType, handles: tuple[Any, ...], own: set[int]) -> bool:
    if id(frame.f_globals) in own:
        return True
    if frame.f_code not in _CALLS:
        return False
    called = frame.f_locals.get(frame.f_code.co_varnames[0])
    return any(called is handle for handle in handles)
