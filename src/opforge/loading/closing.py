"""Keeps the calls of other threads away while a library's operators are taken out of torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from .. import _compat
from ..registration.register import PATIENCE
from .op_backend import Service


@contextlib.contextmanager
def without_calls(services: Iterable[Service]) -> Iterator[None]:
    """Let calls that are under way end, and new ones wait.

    Those of operators that will be gone raise. Torch would free kernels and schemas that are read.
    """
    pairs = [(service, service.entry) for service in services if service.entry is not None]
    gate = _compat.running.Gate(PATIENCE)
    with contextlib.ExitStack() as held:
        held.callback(gate.open)
        for _, entry in pairs:
            if entry.stands_in:
                entry.registration.end_calls("defined by a library that was closed")
            else:
                held.enter_context(entry.registration.without_calls(gate))

        def is_busy() -> bool:
            return any(
                service.is_running() or entry.registration.is_called_elsewhere()
                for service, entry in pairs
            )

        _compat.running.wait_while(is_busy, PATIENCE)
        yield
