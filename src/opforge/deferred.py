"""Work that loading a library leaves until something needs it.

Two things run it: the registry, before it answers, and the library's operators, for any call but
the plainest. Nothing is deferred once there is a registry, so that who has run it and holds the
registry's lock finds nothing new here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from .locks import fork_safe_lock

_lock = fork_safe_lock()
_waiting: list[Callable[[], Callable[[], None]]] = []


def defer(begin: Callable[[], None], work: Callable[[], Callable[[], None]]) -> bool:
    """Do `begin` now and `work` when it is needed; False, and neither, if there is a registry.

    `work` imports what it needs and returns the function that does the rest, which runs once.
    """
    with _lock:
        if "opforge.registry" in sys.modules:
            return False
        begin()
        _waiting.append(work)
        return True


def run_deferred() -> None:
    """Do all deferred work now; other threads wait until it is done."""
    with _lock:
        while _waiting:
            # If the import is interrupted, the work still waits.
            finish = _waiting[-1]()
            _waiting.pop()
            finish()
