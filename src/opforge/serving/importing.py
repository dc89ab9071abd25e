"""Imports what a recording names, scripts among it, without being ended or misread by it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

from .._compat import patches


class Exited(BaseException):
    """Imported code has called `os._exit`; passed on, a build would end as if it had worked."""


@contextlib.contextmanager
def importable_from(folders: Sequence[str]) -> Iterator[None]:
    """While code is imported: also from these folders."""
    added = [folder for folder in folders if folder not in sys.path]
    sys.path.extend(added)
    try:
        yield
    finally:
        for folder in added:
            # The code may have changed the list itself.
            with contextlib.suppress(ValueError):
                sys.path.remove(folder)


@contextlib.contextmanager
def as_a_module(name: str) -> Iterator[None]:
    """While code is imported: with arguments of its own, and no way to end this process."""
    here = os.getpid()
    leave = os._exit

    def exit_(status: int) -> NoReturn:
        # What the code forks may end.
        if os.getpid() != here:
            leave(status)
        raise Exited(f"it called os._exit({status})")

    with patches.FOUND_EXIT.on(os, _exit=exit_), patches.FOUND_ARGUMENTS.on(sys, argv=[name]):
        yield
