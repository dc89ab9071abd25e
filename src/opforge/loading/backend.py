"""Which implementation of an op a thread wants: native, the JIT, or either."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import opforge

# The numbers that adapters have for them.
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
    """Tell an adapter now, and whenever it changes."""
    _adapters.append(set_backend)
    set_backend(_wanted.value)


@contextlib.contextmanager
def backend(name: str) -> Iterator[None]:
    """Choose how loaded operators run, in this thread and inside the `with`.

        with opforge.backend("jit"):
            silu(x)

    "native": only the library; a call that it does not cover raises. "jit": only the source,
    compiled by Triton. "auto", the default: the library where it covers the call, otherwise the
    JIT, with one warning per op.
    """
    if name not in _NAMES:
        from ..native.ir.wording import one_of

        known = one_of([repr(n) for n in _NAMES])
        raise opforge.errors.BadOption(f"there is no backend {name!r}", fix=f"one of {known}")
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
