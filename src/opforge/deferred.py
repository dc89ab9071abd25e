"""What was put off until somebody looks: the larger part of loading a library.

The registry settles it before it answers, and so do the operators of such a library for any call
but the plainest. Nothing is put off once there is a registry, so that whoever has settled and
goes on with the registry's lock in hand finds nothing new here.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

_lock = threading.RLock()
_waiting: list[Callable[[], Callable[[], None]]] = []


def put_off(begin: Callable[[], None], work: Callable[[], Callable[[], None]]) -> bool:
    """Do `begin` now and `work` when it is needed; False, and neither, if it is needed already.

    `work` imports what it takes and gives the function that does the rest, which is called once.
    """
    with _lock:
        if "opforge.registry" in sys.modules:
            return False
        begin()
        _waiting.append(work)
        return True


def settle() -> None:
    """Do now all that was put off; other threads wait until it is done."""
    with _lock:
        while _waiting:
            # Interrupted here it is still waiting.
            finish = _waiting[-1]()
            _waiting.pop()
            finish()
