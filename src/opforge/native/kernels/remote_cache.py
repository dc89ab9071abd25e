"""A cache of compiled kernels that machines share, read and written beside a build by fsspec."""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.pool import AsyncResult, ThreadPool
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from ... import environment
from ...errors import BadOption, first_line, warn
from ...notebook import counted

# Of a server, in seconds.
_TIMEOUT = 2.0
# How long a build waits at its end for what it has still to write.
_LAST_WRITES = 3.0
# What an image saves at least: compiling one takes half a second of one core, and few have more
# than ten of them.
_SAVED = 0.05
# No cubin comes near it; more of an entry is not asked for.
_LARGEST = 2**28
_THREADS = 8
Note = Callable[[str], None]


def remote_cache() -> RemoteCache | None:
    """That of `OPFORGE_REMOTE_CACHE`, if there is one; raises `BadOption` for a bad URL."""
    url = environment.REMOTE_CACHE.get().strip()
    return RemoteCache(url) if url else None


class RemoteCache:
    """One build's use of a shared cache; the first failure ends it.

    The threads of its pools are daemons: none that hangs keeps Python from ending.
    """

    def __init__(
        self, url: str, *, timeout: float = _TIMEOUT, last_writes: float = _LAST_WRITES
    ) -> None:
        parts = _parse(url)
        # For messages: without user, password and query, which may be a signature.
        self.shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._timeout = timeout
        self._last_writes = last_writes
        self._is_local = parts.scheme == "file"
        self._is_off = False
        self._files, self._root, self._query = self._open(url, parts)
        self._writers: ThreadPool | None = None
        self._writes: list[AsyncResult[None]] = []

    def read(self, keys: Iterable[str], note: Note) -> Iterator[tuple[str, bytes]]:
        """The entries that are there and come in time.

        Waits for the timeout of one request, and longer as images arrive.
        """
        asked = [] if self._is_off else list(keys)
        if not asked:
            return
        # A request that times out should be the first to say so.
        patience = self._timeout * 1.25
        with ThreadPool(min(_THREADS, len(asked))) as pool:
            answers = pool.imap(self._get, asked)
            for count, key in enumerate(asked):
                began = time.monotonic()
                try:
                    content = answers.next(max(patience, 0))
                except multiprocessing.TimeoutError as error:
                    if not count:
                        self._fail(error)
                        return
                    # Slow, but there: it may be filled for the next build.
                    late = f"{counted(len(asked) - count, 'kernel')} compiled without its answer"
                    note(f"the shared cache at {self.shown} is slow: {late}")
                    return
                except Exception as error:  # noqa: BLE001  # a file system raises of any kind
                    self._fail(error)
                    return
                patience -= time.monotonic() - began
                if content is not None:
                    patience += _SAVED
                    yield key, content

    def offer(self, key: str, content: bytes) -> None:
        """Start to write an entry."""
        if not self._is_off:
            self._writers = self._writers or ThreadPool(_THREADS)
            self._writes.append(self._writers.apply_async(self._put, (key, content)))

    def finish(self, note: Note) -> None:
        """Wait for what is being written, but not for long."""
        if self._writers is None:
            return
        end = time.monotonic() + self._last_writes
        try:
            for write in self._writes:
                write.get(max(end - time.monotonic(), 0))
        except multiprocessing.TimeoutError:
            self._is_off = True
            late = counted(sum(not write.ready() for write in self._writes), "kernel")
            note(
                f"not all is in the shared cache at {self.shown}: {late} did not get there in time"
            )
        except Exception as error:  # noqa: BLE001  # as above
            note(f"cannot write to the shared cache at {self.shown}: {self._reason(error)}")
        self._writers.terminate()
        self._writers, self._writes = None, []

    def _open(self, url: str, parts: SplitResult) -> tuple[Any, str, str]:
        """The file system, and what stands before and after a key."""
        try:
            import fsspec

            if parts.scheme == "file":
                return fsspec.filesystem("file"), unquote(parts.path).rstrip("/"), ""
            if parts.scheme not in {"http", "https"}:
                files, root = fsspec.core.url_to_fs(url)
                return files, root.rstrip("/"), ""
            import aiohttp

            # A server may send byte by byte.
            timeout = aiohttp.ClientTimeout(
                total=5 * self._timeout, sock_connect=self._timeout, sock_read=self._timeout
            )
            options = {"timeout": timeout, "trust_env": True}
            files = fsspec.filesystem(parts.scheme, client_kwargs=options)
        except OSError as error:
            # A server that is away fails no build.
            self._fail(error)
            return None, "", ""
        except Exception as error:  # noqa: BLE001  # as above
            raise BadOption(
                f"{environment.REMOTE_CACHE.name} cannot be opened",
                found=self._reason(error),
                fix="pip install 'opforge[remote]', and for schemes other than https:// and "
                "file:// the package that fsspec needs",
            ) from None
        root = parts._replace(query="", fragment="").geturl().rstrip("/")
        return files, root, f"?{parts.query}" if parts.query else ""

    def _place(self, key: str) -> str:
        return f"{self._root}/{key}{self._query}"

    def _get(self, key: str) -> bytes | None:
        try:
            return bytes(self._files.cat_file(self._place(key), end=_LARGEST))
        except FileNotFoundError:
            return None

    def _put(self, key: str, content: bytes) -> None:
        if self._is_off:
            return
        try:
            # In a folder, nobody sees a part of an entry.
            new = self._place(f".{key}.{secrets.token_hex(8)}" if self._is_local else key)
            try:
                self._files.pipe_file(new, content)
            except FileNotFoundError:
                # Object stores have no folders to make.
                self._files.makedirs(self._root, exist_ok=True)
                self._files.pipe_file(new, content)
            if self._is_local:
                self._files.mv(new, self._place(key))
        except BaseException:
            self._is_off = True
            raise

    def _fail(self, error: Exception) -> None:
        self._is_off = True
        what = f"the shared cache at {self.shown} is not used for the rest of the build"
        warn(f"{what}: {self._reason(error)}")

    def _reason(self, error: Exception) -> str:
        # Of Python 3.10, these are three classes.
        if isinstance(error, (TimeoutError, asyncio.TimeoutError, multiprocessing.TimeoutError)):
            return f"no answer within {self._timeout:g} s"
        if hasattr(error, "status"):
            return f"it answered {error.status} {first_line(getattr(error, 'message', ''))}"
        if isinstance(error, OSError) and error.strerror:
            return first_line(error.strerror)
        return re.sub(r"\S+://\S+", self.shown, f"{type(error).__name__}: {first_line(error)}")


def _parse(url: str) -> SplitResult:
    shown = url.partition("://")[0] + "://..." if "://" in url else url
    try:
        parts = urlsplit(url)
        _ = parts.port
        folder = parts.path[1:] and "\0" not in unquote(parts.path) and not parts.netloc
        is_whole = "://" in url and (folder if parts.scheme == "file" else parts.hostname)
    except ValueError:
        is_whole = False
    if is_whole:
        return parts
    raise BadOption(
        f"{environment.REMOTE_CACHE.name} is not a URL of a web server, folder or bucket",
        found=shown,
        fix="give a URL such as https://cache.example.com/kernels or file:///mnt/kernels",
    )
