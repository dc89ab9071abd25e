"""A dask cluster's workers as the executor of a build."""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Iterator
from concurrent.futures import Executor

from ...errors import BadOption, first_line
from .progress import Progress

# Seconds; dask itself would try for 30.
_TIMEOUT = 10

# dask takes 20 s to give up a client whose address it could not read.
_ADDRESS = re.compile(r"((tcp|tls|ws|wss|ucx)://)?(\[[^\]\s]+\]|[^\s:/\[\]]+):\d{1,5}(/\S*)?")


@contextlib.contextmanager
def dask_executor(address: str | None, progress: Progress) -> Iterator[Executor | None]:
    """The executor of the scheduler at an address; None without one."""
    if address is None:
        yield None
        return
    if not _ADDRESS.fullmatch(address):
        raise BadOption(
            "--dask was not given the address of a scheduler",
            found=repr(address),
            fix="give host:port, for example --dask scheduler:8786",
        )
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
            fix="start one with `dask scheduler`, and give the address that it prints",
        ) from error
    with client:
        if not client.scheduler_info()["workers"]:
            # It may start them for the first job.
            progress.note(
                f"the scheduler at {address} has no workers yet; `dask worker {address}` starts one"
            )
        yield client.get_executor()
