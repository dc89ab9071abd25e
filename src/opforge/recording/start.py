"""Starts recording in a process that `opforge record` has started, when it imports Triton."""

from __future__ import annotations

import atexit
import os
from pathlib import Path

from ..after_triton import after_triton


def start(folder: str) -> None:
    """Record into a folder from Triton's import on."""
    after_triton(lambda: _record(Path(folder)))


def _record(folder: Path) -> None:
    from .. import _compat
    from . import watch
    from .journal import Journal
    from .recorder import Recorder

    # The command has ended, and taken its folder with it; this process goes on unrecorded.
    if not folder.is_dir():
        return
    journal = Journal(folder, _compat.compiling.version())
    recorder = Recorder(journal)

    def in_child() -> None:
        journal.after_fork()
        recorder.forget()

    os.register_at_fork(after_in_child=in_child)
    atexit.register(recorder.finish)
    watch.start(recorder)
