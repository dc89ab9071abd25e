"""Each process's findings, a line of JSON each, written as they are made.

Processes are killed, fork, and end without saying goodbye. A line that was written stays; later
lines of a variant have higher counts.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import secrets
from pathlib import Path
from typing import TextIO

from .. import _compat
from .model import CODECS, Recording

_CODEC = CODECS.of(Recording)


class Journal:
    """A recorder's report, in a file of this process in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: TextIO | None = None
        self.begin()

    def begin(self) -> None:
        """Go on in a file of this process's own, as a forked one must."""
        # Processes in containers may share a folder and a number.
        name = f"launches-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
        try:
            self._file = (self._folder / name).open("a", encoding="utf-8")
        except OSError as error:
            self._end(error)
        self.add(Recording(triton=(_compat.compiling.version(),)))

    def _end(self, error: OSError) -> None:
        """Go on without recording: a program must not fail because it is recorded."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
        os.write(2, f"opforge: nothing more is recorded: {error}\n".encode())

    def add(self, part: Recording) -> None:
        if self._file is None:
            return
        try:
            # In one piece, so that a process that is killed leaves whole lines.
            self._file.write(json.dumps(_CODEC.write(part)) + "\n")
            self._file.flush()
        except OSError as error:
            self._end(error)


def start(folder: Path) -> None:
    """Record the launches of this process into a folder; Triton must be imported."""
    from . import recorder

    # The command has ended, and taken its folder with it; this process goes on unrecorded.
    if not folder.is_dir():
        return
    journal = Journal(folder)
    own = recorder.Recorder(journal.add)

    def in_child() -> None:
        journal.begin()
        own.forget()

    os.register_at_fork(after_in_child=in_child)
    atexit.register(own.finish)
    recorder.start(own)


def read_folder(folder: Path) -> Recording:
    """What all processes found."""
    processes = (_read_file(path) for path in sorted(folder.glob("launches-*.jsonl")))
    found = [process for process in processes if process.kernels or process.missed]
    return functools.reduce(Recording.joined, found, Recording())


def _read_file(path: Path) -> Recording:
    # What follows the last end of a line is from a process that was killed while it wrote.
    *lines, _ = path.read_text(encoding="utf-8").split("\n")
    parts = [_CODEC.read(json.loads(line)) for line in lines]
    return Recording.of_process(parts)
