"""Locks that a forked child can take, whoever held them in its parent."""

from __future__ import annotations

import os
import threading
import weakref

# Long enough for another thread to finish its decorator. A fork must not wait for ever: that
# thread may be waiting for the one that forks.
_PATIENCE = 5.0

_locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
_patient: weakref.WeakSet[threading.RLock] = weakref.WeakSet()


def fork_safe_lock(*, waited_for: bool = False) -> threading.RLock:
    """A reentrant lock; before a fork, one that is `waited_for` is taken.

    Only the thread that forks lives on in the child. A lock that another thread held would stay
    held there for ever, and what it guards may be half done.
    """
    lock = threading.RLock()
    (_patient if waited_for else _locks).add(lock)
    return lock


class _Fork:
    """One fork, of one thread; other threads may fork at the same time."""

    def __init__(self) -> None:
        self._now = threading.local()

    def before(self) -> None:
        taken: list[threading.RLock] = []
        held: list[threading.RLock] = []
        for lock in [*_patient, *_locks]:
            got = lock.acquire(timeout=_PATIENCE if lock in _patient else 0)
            (taken if got else held).append(lock)
        self._now.taken, self._now.held = taken, held

    def after_in_parent(self) -> None:
        for lock in self._now.taken:
            lock.release()

    def after_in_child(self) -> None:
        for lock in self._now.held:
            lock._at_fork_reinit()  # noqa: SLF001  # as `threading` does
        self.after_in_parent()


_fork = _Fork()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_fork.before,
        after_in_parent=_fork.after_in_parent,
        after_in_child=_fork.after_in_child,
    )
