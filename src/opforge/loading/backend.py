"""Which of an op's implementations a thread wants: native, the JIT, or whichever there is."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from .._lazy import later

if TYPE_CHECKING:
    from .. import errors
else:
    errors = later("opforge.errors")

# As the adapters have them.
AUTO, NATIVE, JIT = range(3)
_NAMES = {"auto": AUTO, "native": NATIVE, "jit": JIT}


class _Wanted(threading.local):
    value = AUTO


_wanted = _Wanted()
# Adapters keep a flag of their own per thread, so that a call need not ask Python.
_adapters: list[Callable[[int], object]] = []


def wanted() -> int:
    return _wanted.value


def follow(set_backend: Callable[[int], object]) -> None:
    """Tell an adapter from now on, and at once."""
    _adapters.append(set_backend)
    set_backend(_wanted.value)


@contextlib.contextmanager
def backend(name: str) -> Iterator[None]:
    """Choose how loaded operators run, in this thread and for a while.

        with opforge.backend("jit"):
            silu(x)

    "native": the library alone, and a call that it was not built for raises. "jit": the source
    alone, compiled by Triton. "auto", the default: native where the library covers the call, else
    the JIT, with one warning per op.
    """
    if name not in _NAMES:
        from ..native.ir.wording import one_of  # noqa: PLC0415 - first calls do without

        known = one_of([repr(n) for n in _NAMES])
        raise errors.UnknownBackend(f"there is no backend {name!r}", fix=f"one of {known}")
    before = _wanted.value
    _set(_NAMES[name])
    try:
        yield
    finally:
        _set(before)


def _set(value: int) -> None:
    _wanted.value = value
    for set_backend in _adapters:
        set_backend(value)
