"""Build progress: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from rich.console import Console

from ...notebook import counted
from ...progress import ProgressBar, watched_terminal


class Progress:
    """What a build reports; this one prints nothing.

    `start` comes first, `stop` last, even after an error. Both may come twice: a build that drops
    optional kernels compiles again. What comes often is told every `seconds`.
    """

    def __init__(self, seconds: float = 10.0) -> None:
        self._seconds = seconds
        self._wait()

    def start(self, total: int) -> None:
        self.total = total
        self.finished = self.cached = self.failed = 0

    def done(self, label: str, *, cached: bool = False, failed: bool = False) -> None:
        """A variant is finished, such as `silu sm_90`."""
        self.last = label
        self.finished += 1
        self.cached += cached
        self.failed += failed

    def traced(self, op: str, paths: int) -> None:
        """Comes before `start`, after each path of an op that was traced."""
        if self._is_due():
            self.note(f"tracing {op}: {counted(paths, 'path')} so far")

    def note(self, text: str) -> None: ...

    def stop(self) -> None: ...

    @property
    def asides(self) -> str:
        """`3 cached, 1 failed`; empty if none was."""
        counts = {"cached": self.cached, "failed": self.failed}
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count)

    def _is_due(self) -> bool:
        if time.monotonic() < self._next:
            return False
        self._wait()
        return True

    def _wait(self) -> None:
        self._next = time.monotonic() + self._seconds


class Bar(Progress):
    """A bar that stays on screen after the build, with notes above it."""

    def __init__(self, console: Console | None = None, seconds: float = 10.0) -> None:
        super().__init__(seconds)
        self._bar = ProgressBar("compiling", console or Console(stderr=True))

    def start(self, total: int) -> None:
        super().start(total)
        self._bar.start(total)

    def done(self, label: str, *, cached: bool = False, failed: bool = False) -> None:
        super().done(label, cached=cached, failed=failed)
        self._bar.advance(self.last)

    def note(self, text: str) -> None:
        self._bar.say(text)

    def stop(self) -> None:
        self._bar.stop(self.asides)


class Lines(Progress):
    """Lines for logs: the first, the last, and one from time to time in between."""

    def __init__(self, file: TextIO | None = None, seconds: float = 10.0) -> None:
        super().__init__(seconds)
        self._file = file

    def start(self, total: int) -> None:
        super().start(total)
        self._wait()
        if total:
            self.note(f"compiling {counted(total, 'image')}")

    def done(self, label: str, *, cached: bool = False, failed: bool = False) -> None:
        super().done(label, cached=cached, failed=failed)
        if self.finished < self.total and self._is_due():
            self._count()

    def note(self, text: str) -> None:
        print(text, file=self._file or sys.stderr, flush=True)  # it is what it does

    def stop(self) -> None:
        if self.total:
            self._count()

    def _count(self) -> None:
        asides = f" ({self.asides})" if self.asides else ""
        self.note(f"compiled {self.finished} of {self.total}{asides}")


def for_terminal() -> Progress:
    """A bar if stderr is a terminal, else lines."""
    console = watched_terminal()
    return Lines() if console is None else Bar(console)
