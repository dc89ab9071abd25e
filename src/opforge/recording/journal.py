"""Each process's findings, a line of JSON each, written as they are made.

Processes are killed, fork, and end without saying goodbye. A line that was written stays; later
lines of a variant have higher counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import Any, TextIO

from ..records import field
from .model import CODECS, Missed, RecordedKernel, Recording

_KERNEL, _MISSED = CODECS.of(RecordedKernel), CODECS.of(Missed)
_PATTERN = "launches-*.jsonl"


class Journal:
    """A recorder's report, in a file of this process in a folder."""

    def __init__(self, folder: Path, triton: str) -> None:
        self._folder, self._triton = folder, triton
        self._file: TextIO | None = None
        self._open()

    def _open(self) -> None:
        # Processes in containers may share a folder and a number.
        name = f"launches-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
        try:
            self._file = (self._folder / name).open("a", encoding="utf-8")
        except OSError as error:
            self._end(error)
            return
        self._write({"triton": self._triton})

    def _end(self, error: OSError) -> None:
        """Go on without recording: a program must not fail because it is recorded."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
        os.write(2, f"opforge: nothing more is recorded: {error}\n".encode())

    def after_fork(self) -> None:
        """Go on in a file of the child's own."""
        self._open()

    def kernel(self, found: RecordedKernel) -> None:
        self._write({"kernel": _KERNEL.write(found)})

    def counts(self, found: RecordedKernel) -> None:
        self.kernel(found)

    def missed(self, found: Missed) -> None:
        self._write({"missed": _MISSED.write(found)})

    def _write(self, line: Any) -> None:
        if self._file is None:
            return
        try:
            # In one piece, so that a process that is killed leaves whole lines.
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            self._end(error)


def read_folder(folder: Path) -> tuple[Recording, list[str]]:
    """What all processes found, and what is wrong with their files."""
    recording = Recording()
    problems: list[str] = []
    for path in sorted(folder.glob(_PATTERN)):
        found = _read_file(path, problems)
        if found.kernels or found.missed:
            recording = recording.joined(found)
    return recording, problems


def _read_file(path: Path, problems: list[str]) -> Recording:
    # By what they are about: later lines of a variant have the higher counts.
    found: dict[Any, Recording] = {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, text in enumerate(lines, 1):
        key, said = _read_line(text)
        if isinstance(said, Recording):
            found[key] = said
        elif number < len(lines):
            problems.append(f"{path.name}:{number}: {said}")
        # The last line may be that of a process that was killed while it wrote.
    whole = Recording(processes=1)
    for one in found.values():
        whole = whole.joined(one)
    return whole


def _read_line(text: str) -> tuple[Any, Recording | str]:
    """What a line is about and says, or what is wrong with it."""
    try:
        line = json.loads(text)
        if "kernel" in line:
            kernel: RecordedKernel = _KERNEL.read(line["kernel"])
            variants = [variant.key for variant in kernel.variants]
            return (*kernel.identity, *variants, repr(kernel.choices)), Recording((kernel,))
        if "missed" in line:
            missed: Missed = _MISSED.read(line["missed"])
            return missed, Recording(missed=(missed,))
        return "triton", Recording(triton=(field(line, "triton", str),))
    except (ValueError, TypeError) as error:
        return None, str(error)
