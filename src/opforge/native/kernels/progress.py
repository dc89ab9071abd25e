"""Build progress: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console

from ...progress import ProgressBar, watched_terminal


@dataclass(frozen=True)
class Compiled:
    """A finished variant: its kernel, `str(request)`, and the architecture."""

    kernel: str
    variant: str
    arch: int
    cached: bool = False
    failed: bool = False


class Progress:
    """What `compile_all` reports; this one prints nothing.

    `start` comes first, `stop` last, even after an error. Both may come twice: a build that drops
    optional kernels compiles again.
    """

    def start(self, total: int) -> None: ...

    def done(self, compiled: Compiled) -> None: ...

    def note(self, text: str) -> None: ...

    def stop(self) -> None: ...


class Bar(Progress):
    """A bar that stays on screen after the build, with notes above it."""

    def __init__(self, console: Console | None = None) -> None:
        self._bar = ProgressBar("compiling", console or Console(stderr=True))
        self._cached = self._failed = 0

    def start(self, total: int) -> None:
        self._cached = self._failed = 0
        self._bar.start(total)

    def done(self, compiled: Compiled) -> None:
        self._cached += compiled.cached
        self._failed += compiled.failed
        self._bar.advance(f"{compiled.kernel} sm_{compiled.arch}")

    def note(self, text: str) -> None:
        self._bar.say(text)

    def stop(self) -> None:
        self._bar.stop(_asides(self._cached, self._failed))


class Lines(Progress):
    """Lines for logs: the first, the last, and one every `seconds` in between."""

    def __init__(self, file: TextIO | None = None, seconds: float = 10.0) -> None:
        self._file = file
        self._seconds = seconds
        self._total = self._done = self._cached = self._failed = 0
        self._next = 0.0

    def start(self, total: int) -> None:
        self._total = total
        self._done = self._cached = self._failed = 0
        self._next = time.monotonic() + self._seconds
        if total:
            self._say(f"compiling {total} kernel variant{'s' if total != 1 else ''}")

    def done(self, compiled: Compiled) -> None:
        self._done += 1
        self._cached += compiled.cached
        self._failed += compiled.failed
        if self._done < self._total and time.monotonic() >= self._next:
            self._next = time.monotonic() + self._seconds
            self._say(f"compiled {self._counts()}")

    def note(self, text: str) -> None:
        self._say(text)

    def stop(self) -> None:
        if self._total:
            self._say(f"compiled {self._counts()}")

    def _counts(self) -> str:
        asides = _asides(self._cached, self._failed)
        return f"{self._done} of {self._total}" + (f" ({asides})" if asides else "")

    def _say(self, text: str) -> None:
        print(text, file=self._file or sys.stderr, flush=True)  # it is what it does


def _asides(cached: int, failed: int) -> str:
    return ", ".join(f"{n} {what}" for n, what in ((cached, "cached"), (failed, "failed")) if n)


def for_terminal() -> Progress:
    """A bar if stderr is a terminal, else lines."""
    console = watched_terminal()
    return Lines() if console is None else Bar(console)
