"""Where a shared cache keeps its entries: on a web server, in a folder, or where fsspec reaches."""

from __future__ import annotations

import base64
import contextlib
import http.client
import importlib
import os
import secrets
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import SplitResult, quote, unquote, urlsplit

from ... import environment
from ...errors import BadOption, first_line

# No cubin comes near it; a server that sends without end is cut off here.
_LARGEST = 2**28


class StoreFailed(Exception):
    """A store cannot be used; the message says why."""


class Store(Protocol):
    """Bytes by key. What goes wrong is an exception of any kind."""

    # For messages: without passwords.
    shown: str

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, content: bytes) -> None: ...


def open_store(url: str, timeout: float) -> Store:
    """The store at a URL, without asking it anything yet; raises `BadOption`."""
    scheme, colon, _ = url.partition("://")
    if not colon or not scheme:
        raise _bad("is not a URL", url)
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise _bad(f"cannot be read: {error}", scheme + "://...") from error
    if parts.scheme in {"http", "https"}:
        if not parts.hostname or any(char.isspace() for char in url):
            raise _bad("is not a web address", _without_secrets(parts))
        return _Web(parts, timeout)
    if parts.scheme == "file":
        folder = unquote(parts.path)
        if parts.netloc not in {"", "localhost"} or not folder.startswith("/") or "\0" in folder:
            raise _bad("does not name a folder of this machine", url)
        return _Folder(Path(folder))
    return _Files(url, parts)


def _bad(what: str, found: str) -> BadOption:
    fix = "give a URL such as https://cache.example.com/kernels or file:///mnt/kernels"
    return BadOption(f"{environment.REMOTE_CACHE.name} {what}", found=found, fix=fix)


def _without_secrets(parts: SplitResult) -> str:
    """Without user, password and query, which may be a signature."""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class _Web:
    def __init__(self, parts: SplitResult, timeout: float) -> None:
        self.shown = _without_secrets(parts)
        self._base = self.shown.rstrip("/")
        self._query = f"?{parts.query}" if parts.query else ""
        self._timeout = timeout
        self._user = ""
        if "@" in parts.netloc:
            given = unquote(parts.netloc.rpartition("@")[0])
            self._user = base64.b64encode(given.encode()).decode()

    def get(self, key: str) -> bytes | None:
        try:
            with self._send(key, "GET") as answer:
                return self._body(answer)
        except _Status as error:
            if error.code in {404, 410}:
                return None
            raise

    def put(self, key: str, content: bytes) -> None:
        with self._send(key, "PUT", content):
            pass

    def _send(self, key: str, method: str, content: bytes | None = None) -> Any:
        url = f"{self._base}/{quote(key)}{self._query}"
        request = urllib.request.Request(url, content, method=method)  # noqa: S310  # http(s) only
        if content is not None:
            request.add_header("Content-Type", "application/octet-stream")
        if self._user:
            # A server that redirects does not pass it on to others.
            request.add_unredirected_header("Authorization", f"Basic {self._user}")
        try:
            return urllib.request.urlopen(request, timeout=self._timeout)  # noqa: S310  # as above
        except urllib.error.HTTPError as error:
            with error:
                why = f"it answered {error.code} {first_line(error.reason)}"
                raise _Status(error.code, why) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, OSError):
                raise error.reason from None
            raise StoreFailed(first_line(error.reason)) from None

    def _body(self, answer: Any) -> bytes:
        # A timeout is for one read, and a server may send byte by byte.
        end = time.monotonic() + 5 * self._timeout
        parts: list[bytes] = []
        size = 0
        # What ends too early has a wrong hash.
        with contextlib.suppress(http.client.IncompleteRead):
            while part := answer.read1(2**16):
                parts.append(part)
                size += len(part)
                if time.monotonic() > end or size > _LARGEST:
                    raise StoreFailed("an answer does not end")
        return b"".join(parts)


class _Status(StoreFailed):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Folder:
    def __init__(self, folder: Path) -> None:
        self.shown = str(folder)
        self._folder = folder

    def get(self, key: str) -> bytes | None:
        try:
            return (self._folder / key).read_bytes()
        except FileNotFoundError:
            return None

    def put(self, key: str, content: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._folder / f".{key}.{secrets.token_hex(8)}"
        # The umask decides who may read it; a temporary file would be its owner's alone.
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with open(file, "wb") as opened:  # noqa: PTH123  # pathlib opens paths only
                opened.write(content)
            new.replace(self._folder / key)
        except BaseException:
            new.unlink(missing_ok=True)
            raise


class _Files:
    """What fsspec opens: `s3://`, `gs://`, `sftp://` and others."""

    def __init__(self, url: str, parts: SplitResult) -> None:
        self.shown = _without_secrets(parts)
        install = f"pip install fsspec, with the package that it needs for {parts.scheme}://"
        name = environment.REMOTE_CACHE.name
        self._failed = ""
        try:
            core = importlib.import_module("fsspec.core")
            self._files, root = core.url_to_fs(url)
        except OSError as error:
            # A server that is away fails no build; the first use of the cache says so.
            self._failed, root = first_line(error), ""
        except ImportError as error:
            raise BadOption(
                f"{name} cannot be opened: {parts.scheme}:// needs a package that is not there",
                found=first_line(error),
                fix=install,
            ) from error
        except Exception as error:
            raise BadOption(
                f"{name} cannot be opened: fsspec refuses {parts.scheme}://",
                found=first_line(error),
                fix=f"{install}, or give https:// or file:///",
            ) from error
        self._root = str(root).rstrip("/")

    def get(self, key: str) -> bytes | None:
        if self._failed:
            raise StoreFailed(self._failed)
        try:
            return bytes(self._files.cat_file(f"{self._root}/{key}"))
        except FileNotFoundError:
            return None

    def put(self, key: str, content: bytes) -> None:
        try:
            self._files.pipe_file(f"{self._root}/{key}", content)
        except FileNotFoundError:
            # Object stores have no folders to make.
            self._files.makedirs(self._root, exist_ok=True)
            self._files.pipe_file(f"{self._root}/{key}", content)
