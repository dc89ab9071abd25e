"""Locks that a forked child can take, whoever held them in its parent."""

from __future__ import annotations

import os
import threading
import weakref

_locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()


def fork_safe_lock() -> threading.RLock:
    """A reentrant lock.

    Only the thread that forks lives on in the child. A lock that another thread held would stay
    held there for ever. What it guards may be half done.
    """
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _free_in_child() -> None:
    for lock in [*_locks]:
        # What the thread that forks holds stays its own.
        if not lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
            lock._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001  # as `threading`


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_in_child)
