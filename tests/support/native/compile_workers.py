"""Compile workers that outlive the builds of a test process.

A build starts as many as there are cores, and each takes 0.7 s to import Triton: longer than it
takes to compile a small kernel.
"""

import contextlib
import functools
from concurrent.futures import BrokenExecutor, Executor

import pytest

from opforge.native.kernels import workers

start_pool = workers.start_pool


@functools.cache
def pool():
    return start_pool(1)


class Lasting(Executor):
    """The pool of all builds, which none of them ends; another one after a compiler's crash."""

    def submit(self, fn, /, *args, **kwargs):
        try:
            return pool().submit(fn, *args, **kwargs)
        except BrokenExecutor:
            pool.cache_clear()
            return pool().submit(fn, *args, **kwargs)


@contextlib.contextmanager
def lasting():
    """Builds share workers, which do not see variables that a test sets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "start_pool", lambda _: Lasting())
        yield
