"""What a build reports while it runs: to a bar, to a log, or to nobody."""

from __future__ import annotations

import time

from ...notebook import counted
from ...progress import Log, ProgressBar


class Progress:
    """Counts images for a bar, or tells a log of them every `seconds`; without either, silent.

    `start` comes first, `stop` last, even after an error. Both may come twice: a build that drops
    optional kernels compiles again.
    """

    def __init__(self, shown: ProgressBar | None = None, seconds: float = 10.0) -> None:
        self._shown = shown or Log(quiet=True)
        self._seconds = seconds
        self._next = time.monotonic() + seconds

    def start(self, total: int) -> None:
        self.total = total
        self.finished = self.cached = self.failed = 0
        self._shown.start(total)
        if total:
            self._shown.detail(f"compiling {counted(total, 'image')}")

    def done(self, label: str, *, cached: bool = False, failed: bool = False) -> None:
        """A variant is finished, such as `silu sm_90`."""
        self.finished += 1
        self.cached += cached
        self.failed += failed
        self._shown.advance(label)
        if self.finished < self.total and self._is_due():
            self._shown.detail(self._count())

    def traced(self, op: str, paths: int) -> None:
        """Comes before `start`, after each path of an op that was traced."""
        if self._is_due():
            self.note(f"tracing {op}: {counted(paths, 'path')} so far")

    def note(self, text: str) -> None:
        self._shown.say(text)

    def stop(self) -> None:
        self._shown.stop(self._asides())
        if self.total:
            self._shown.detail(self._count())

    def _count(self) -> str:
        asides = self._asides()
        return f"compiled {self.finished} of {self.total}{f' ({asides})' if asides else ''}"

    def _asides(self) -> str:
        """`3 cached, 1 failed`; empty if none was."""
        counts = {"cached": self.cached, "failed": self.failed}
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count)

    def _is_due(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True
