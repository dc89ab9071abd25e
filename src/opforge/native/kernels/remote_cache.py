"""A cache of compiled kernels that machines share, read and written beside a build."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ... import environment
from ...errors import first_line
from ...notebook import counted
from .remote_store import Store, StoreFailed, open_store

# Of one request, in seconds.
_TIMEOUT = 2.0
# How long a build waits at its end for what it has still to write.
_LAST_WRITES = 3.0
# What an image saves at least: compiling one takes half a second of one core, and few have more
# than ten of them.
_SAVED = 0.05
_THREADS = 8


@dataclass(frozen=True)
class Said:
    """What a build should tell its user; `is_warning` if it is more than a note."""

    text: str
    is_warning: bool = False


def remote_cache() -> RemoteCache | None:
    """That of `OPFORGE_REMOTE_CACHE`, if there is one; raises `BadOption` for a bad URL."""
    url = environment.REMOTE_CACHE.get().strip()
    return RemoteCache(open_store(url, _TIMEOUT)) if url else None


class RemoteCache:
    """One build's use of a shared cache; the first failure ends it.

    Threads read and write. A build waits for answers no longer than the timeout of one request,
    plus what the images that came have saved it.
    """

    def __init__(
        self, store: Store, *, timeout: float = _TIMEOUT, last_writes: float = _LAST_WRITES
    ) -> None:
        self.shown = store.shown
        self._store = store
        self._timeout = timeout
        self._last_writes = last_writes
        # A request that times out should be the first to say so.
        self._patience = timeout * 1.25
        self._changed = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._answers: dict[str, bytes | None] = {}
        self._answered = 0
        self._unasked = 0
        self._unwritten = 0
        self._is_off = False
        self._said: list[Said] = []

    def ask(self, keys: Iterable[str]) -> None:
        """Start to read these, in their order."""
        with self._changed:
            if self._patience > 0:
                self._start([lambda key=key: self._read(key) for key in keys])  # type: ignore[misc]

    def answer(self, key: str) -> bytes | None:
        """The entry that was asked for, or None if there is none, or not in time."""
        with self._changed:
            while key not in self._answers and not self._is_off and self._patience > 0:
                began = time.monotonic()
                self._changed.wait(self._patience)
                self._patience -= time.monotonic() - began
            if key not in self._answers and not self._is_off:
                self._give_up_reading()
            found = self._answers.get(key)
            # The build has it now. An answer all the same, should it ask twice.
            self._answers[key] = None
            return found

    def offer(self, key: str, content: bytes) -> None:
        """Start to write an entry."""
        with self._changed:
            if not self._is_off:
                self._unwritten += 1
                self._start([lambda: self._write(key, content)])

    def finish(self) -> None:
        """Wait for what is being written, but not for long."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_off or not self._unwritten, self._last_writes)
            if self._unwritten and not self._is_off:
                late = f"{counted(self._unwritten, 'kernel')} did not get there in time"
                self._turn_off(Said(f"not all is in the shared cache at {self.shown}: {late}"))
            if self._unasked:
                late = f"{counted(self._unasked, 'kernel')} compiled without its answer"
                self._said.append(Said(f"the shared cache at {self.shown} is slow: {late}"))
                self._unasked = 0

    def news(self) -> list[Said]:
        """What there is to tell since the last time."""
        with self._changed:
            said, self._said = self._said, []
            return said

    def _give_up_reading(self) -> None:
        if self._answered:
            # Slow, but there: it may be filled for the next build. Writing has not begun.
            self._unasked += 1
            self._jobs.clear()
        else:
            self._turn_off(self._failure(TimeoutError()))

    def _start(self, jobs: list[Callable[[], None]]) -> None:
        if self._is_off:
            return
        self._jobs += jobs
        for _ in range(min(_THREADS - self._threads, len(self._jobs))):
            self._threads += 1
            # Python waits for an executor's threads when it ends, but not for these.
            threading.Thread(target=self._work, name="opforge-remote-cache", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._threads -= 1
                    return
                job = self._jobs.popleft()
            job()

    def _read(self, key: str) -> None:
        try:
            found = self._store.get(key)
        except Exception as error:  # noqa: BLE001  # a store raises of any kind
            with self._changed:
                self._turn_off(self._failure(error))
            return
        with self._changed:
            self._answers[key] = found
            self._answered += 1
            if found is not None and self._patience > 0:
                self._patience += _SAVED
            self._changed.notify_all()

    def _write(self, key: str, content: bytes) -> None:
        try:
            self._store.put(key, content)
        except Exception as error:  # noqa: BLE001  # as above
            why = self._reason(error)
            with self._changed:
                self._turn_off(Said(f"cannot write to the shared cache at {self.shown}: {why}"))
            return
        with self._changed:
            self._unwritten -= 1
            self._changed.notify_all()

    def _turn_off(self, said: Said) -> None:
        if not self._is_off:
            self._is_off = True
            self._said.append(said)
            self._jobs.clear()
            self._changed.notify_all()

    def _failure(self, error: Exception) -> Said:
        what = f"the shared cache at {self.shown} is not used for the rest of the build"
        return Said(f"{what}: {self._reason(error)}", is_warning=True)

    def _reason(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self._timeout:g} s"
        if isinstance(error, StoreFailed):
            return str(error)
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        return f"{type(error).__name__}: {first_line(error)}"
