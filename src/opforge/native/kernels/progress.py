"""Build progress: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console

from ...arch import Arch
from ...notebook import counted
from ...progress import ProgressBar, watched_terminal


@dataclass(frozen=True)
class Compiled:
    """A finished variant: its kernel, `str(request)`, and the architecture."""

    kernel: str
    variant: str
    arch: Arch
    cached: bool = False
    failed: bool = False


class Progress:
    """What `compile_all` reports; this one prints nothing.

    `start` comes first, `stop` last, even after an error. Both may come twice: a build that drops
    optional kernels compiles again.
    """

    def start(self, total: int) -> None:
        self.total = total
        self.finished = self.cached = self.failed = 0

    def done(self, compiled: Compiled) -> None:
        self.finished += 1
        self.cached += compiled.cached
        self.failed += compiled.failed

    def traced(self, op: str, paths: int) -> None:
        """Comes before `start`, after each path of an op that was traced."""

    def note(self, text: str) -> None: ...

    def stop(self) -> None: ...

    @property
    def asides(self) -> str:
        """`3 cached, 1 failed`; empty if none was."""
        counts = {"cached": self.cached, "failed": self.failed}
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


class _Every:
    """True once in so many seconds, but not at first."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.wait()

    def wait(self) -> None:
        self._next = time.monotonic() + self._seconds

    def __call__(self) -> bool:
        if time.monotonic() < self._next:
            return False
        self.wait()
        return True


def _tracing(op: str, paths: int) -> str:
    return f"tracing {op}: {counted(paths, 'path')} so far"


class Bar(Progress):
    """A bar that stays on screen after the build, with notes above it."""

    def __init__(self, console: Console | None = None, seconds: float = 10.0) -> None:
        self._bar = ProgressBar("compiling", console or Console(stderr=True))
        self._due = _Every(seconds)

    def traced(self, op: str, paths: int) -> None:
        if self._due():
            self._bar.say(_tracing(op, paths))

    def start(self, total: int) -> None:
        super().start(total)
        self._bar.start(total)

    def done(self, compiled: Compiled) -> None:
        super().done(compiled)
        self._bar.advance(f"{compiled.kernel} {compiled.arch}")

    def note(self, text: str) -> None:
        self._bar.say(text)

    def stop(self) -> None:
        self._bar.stop(self.asides)


class Lines(Progress):
    """Lines for logs: the first, the last, and one every `seconds` in between."""

    def __init__(self, file: TextIO | None = None, seconds: float = 10.0) -> None:
        self._file = file
        self._due = _Every(seconds)

    def traced(self, op: str, paths: int) -> None:
        if self._due():
            self._say(_tracing(op, paths))

    def start(self, total: int) -> None:
        super().start(total)
        self._due.wait()
        if total:
            self._say(f"compiling {counted(total, 'image')}")

    def done(self, compiled: Compiled) -> None:
        super().done(compiled)
        if self.finished < self.total and self._due():
            self._say(f"compiled {self._counts()}")

    def note(self, text: str) -> None:
        self._say(text)

    def stop(self) -> None:
        if self.total:
            self._say(f"compiled {self._counts()}")

    def _counts(self) -> str:
        asides = f" ({self.asides})" if self.asides else ""
        return f"{self.finished} of {self.total}{asides}"

    def _say(self, text: str) -> None:
        print(text, file=self._file or sys.stderr, flush=True)  # it is what it does


def for_terminal() -> Progress:
    """A bar if stderr is a terminal, else lines."""
    console = watched_terminal()
    return Lines() if console is None else Bar(console)
