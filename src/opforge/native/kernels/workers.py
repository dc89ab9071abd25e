"""Who compiles: processes that import Triton and nothing of the program, or a dask cluster."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess, parent_process
from pathlib import Path
from typing import Any

from ..._compat import compiling, patches
from ...errors import BadOption, first_line


class _Process(SpawnProcess):
    """A spawned process that does not run the main module again.

    Otherwise each worker would import torch and the user's kernels, and a script without
    `if __name__ == "__main__"` would start the build again.
    """

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:  # noqa: N802  # multiprocessing's name
        with _NO_MAIN:
            return SpawnProcess._Popen(process_obj)  # noqa: SLF001  # it has no public form


class _Context(SpawnContext):
    Process = _Process


def start_pool(jobs: int) -> ProcessPoolExecutor:
    """A pool whose workers start with the first job, and end with this process, however it ends."""
    return ProcessPoolExecutor(jobs, mp_context=_Context(), initializer=_prepare)


def default_jobs() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _prepare() -> None:
    # Control-C reaches the whole process group; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    compiling.version()


def _end_with_parent() -> None:
    """Wait until the parent is gone, and end what it started.

    A signal that kills the parent leaves it no time to end its workers, and they would wait for
    the next job for ever: each of them holds both ends of the pipe that jobs come from.
    """
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    # ptxas may run for minutes.
    for listed in Path("/proc/self/task").glob("*/children"):
        for process in listed.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
    os._exit(1)


# Spawning reads the main module to decide what the child imports as its own.
_NO_MAIN = patches.MAIN_MODULE.on(sys.modules, __main__=types.ModuleType("__main__"))

# Seconds; dask itself would try for 30.
_TIMEOUT = 10


@contextlib.contextmanager
def dask_executor(address: str | None, note: Callable[[str], None]) -> Iterator[Executor | None]:
    """The executor of the scheduler at an address; None without one."""
    if address is None:
        yield None
        return
    try:
        distributed = importlib.import_module("distributed")
    except ImportError as error:
        raise BadOption(
            f"--dask {address} needs dask's package distributed",
            found=first_line(error),
            fix="pip install distributed, in the version that the cluster has",
        ) from error
    try:
        client = distributed.Client(address, timeout=_TIMEOUT, set_as_default=False)
    # A timeout, or a transport that is not installed or not set up.
    except (ImportError, OSError, TypeError, ValueError) as error:
        raise BadOption(
            f"--dask {address}: no scheduler was reached within {_TIMEOUT} s",
            found=first_line(error),
            fix="start one with `dask scheduler`, and give the address that it prints, host:port",
        ) from error
    with client:
        if not client.scheduler_info()["workers"]:
            # It may start them for the first job.
            note(
                f"the scheduler at {address} has no workers yet; `dask worker {address}` starts one"
            )
        yield client.get_executor()
