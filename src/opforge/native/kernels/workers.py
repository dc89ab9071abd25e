"""Processes that compile: they import Triton, and nothing of the program that starts them."""

from __future__ import annotations

import os
import signal
import sys
import types
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from typing import Any

from ..._compat import compiling, patches


class _Process(SpawnProcess):
    """A spawned process that does not run the main module again.

    It would import torch and the user's kernels in each worker, and start the build anew where
    a script has no `if __name__ == "__main__"`.
    """

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:  # noqa: N802  # multiprocessing's name
        with _NO_MAIN:
            return SpawnProcess._Popen(process_obj)  # noqa: SLF001  # it has no public form


class _Context(SpawnContext):
    Process = _Process


def start_pool(jobs: int) -> ProcessPoolExecutor:
    """Workers that start when the first job comes."""
    return ProcessPoolExecutor(jobs, mp_context=_Context(), initializer=_prepare)


def default_jobs() -> int:
    """As many as there are cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def _prepare() -> None:
    # Control-C reaches the whole group; the parent alone decides what becomes of the work.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    compiling.version()


# Spawning reads from the main module what the child should import in its place.
_NO_MAIN = patches.MAIN_MODULE.on(sys.modules, __main__=types.ModuleType("__main__"))
