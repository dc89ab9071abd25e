"""Keeps compiled kernels between builds, under a hash of everything that goes into them.

On this machine, and in a cache that machines share, which fsspec opens.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shlex
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from ... import environment
from ..._compat import compiling, kernel_hash
from ...arch import Arch
from ...errors import BadOption, first_line, warn
from ..ir.kernel_request import Request
from ..ir.kernels import CODECS, Image

# Part of every key; raise it when the stored format or the compile options change.
_FORMAT = 6
_IMAGE = CODECS.of(Image)


class CorruptEntry(Exception):
    """An entry is damaged; the message says which."""


class OpenToOthers(CorruptEntry):
    """Somebody else can write to an entry or its folder; the message says which and why."""


class Cache:
    """A folder of images that any number of processes may write at once.

    Without a folder, `$OPFORGE_CACHE_DIR/native`, or `opforge/native` where the system keeps
    caches (`$XDG_CACHE_HOME`, `~/.cache`).
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = None if folder is None else Path(folder)

    @property
    def folder(self) -> Path:
        if self._folder is not None:
            return self._folder
        # Read on every call, because the variables may be set after the import.
        given, base = environment.CACHE_DIR.get(), environment.XDG_CACHE_HOME.get()
        if given:
            return Path(given).expanduser() / "native"
        return (Path(base) if base else Path.home() / ".cache") / "opforge" / "native"

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.image"

    def read(self, key: str) -> Image | None:
        """The image stored under a key, or None; raises `CorruptEntry`."""
        path = self.path(key)
        try:
            for place in (self.folder, path.parent, path):
                _refuse_open_to_others(place)
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CorruptEntry(f"{path}: {error.strerror}") from error
        return decode(key, content, str(path))

    def write(self, key: str, image: Image) -> None:
        """Store an image; raises `OSError` if the folder cannot be written to."""
        path = self.path(key)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        for folder in (self.folder, path.parent):
            # A umask of 002 would let the group write, and then nothing here would be used.
            folder.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as stage:
            place = Path(stage, path.name)
            place.write_bytes(encode(key, image))
            place.chmod(0o600)
            place.replace(path)


# The default cache of `compile_all`.
USER_CACHE = Cache()


def cache_key(request: Request, arch: Arch, options: dict[str, object]) -> str:
    """A hash of everything that a compiled kernel depends on.

    Where it and what it calls stand is in it because cubins carry names of files, without their
    folders, and line numbers for profilers.
    """
    hashed = kernel_hash.hash_or_unique(request.fn)
    # A kernel of a compiled graph stands in no file.
    where = [Path(place).name for place in (request.location, *hashed.places)]
    constants = [(name, compiling.constant_key(value)) for name, value in request.constants]
    content = (
        _FORMAT, arch, request.source, hashed.digest, where, request.signature,
        constants, request.divisible, compiling.environment_key(arch, options),
    )  # fmt: skip
    return hashlib.sha256(repr(content).encode()).hexdigest()


def encode(key: str, image: Image) -> bytes:
    """An entry, as it stands in a file and in a shared cache."""
    head = json.dumps(_IMAGE.write(image), sort_keys=True).encode()
    body = b"\n".join([head, image.cubin + image.ptx.encode()])
    return _digest(key, body) + b"\n" + body


def decode(key: str, content: bytes, place: str) -> Image:
    """The image of an entry that was found at a place; raises `CorruptEntry`."""
    digest, _, body = content.partition(b"\n")
    if digest != _digest(key, body):
        raise CorruptEntry(f"{place}: damaged")
    head, _, rest = body.partition(b"\n")
    facts: Image = _IMAGE.read(json.loads(head))
    return facts._replace(cubin=rest[: facts.size], ptx=rest[facts.size :].decode())


def _refuse_open_to_others(place: Path) -> None:
    """What somebody else can write would become part of a library, and run."""
    found = place.stat()
    if found.st_uid not in (os.geteuid(), 0):
        why, fix = "it belongs to another user", "set OPFORGE_CACHE_DIR to a folder of your own"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        why, fix = "others can write to it", f"chmod -R go-w {shlex.quote(str(place))}"
    else:
        return
    raise OpenToOthers(f"{place}: {why}. Fix: {fix}")


def _digest(key: str, body: bytes) -> bytes:
    """With the key, so that an entry under another's name is found out."""
    return hashlib.sha256(key.encode() + b"\n" + body).hexdigest().encode()


# Of a server, in seconds; an answer may take five times as long to arrive.
_TIMEOUT = 2.0
# No cubin comes near it; more of an entry is not asked for.
_LARGEST = 2**28
# As many requests as a server gets at once.
_AT_ONCE = 32


def remote_cache() -> RemoteCache | None:
    """That of `OPFORGE_REMOTE_CACHE`, if there is one; raises `BadOption` for a bad URL."""
    url = environment.REMOTE_CACHE.get().strip()
    return RemoteCache(url) if url else None


class RemoteCache:
    """One build's use of a cache that machines share; the first failure ends it, with a warning.

    Nothing is written atomically: an entry is used only if it has its hash.
    """

    def __init__(self, url: str, *, timeout: float = _TIMEOUT) -> None:
        parts = _parsed(url)
        # For messages: without user, password and query, which may be a signature.
        self.shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._timeout = timeout
        self._root = self._query = ""
        # Of fsspec; None once it has failed.
        self._files: Any = None
        self._offered: dict[str, bytes] = {}
        try:
            self._open(url, parts)
        except OSError as error:
            # A server that is away fails no build.
            self._end(error)
        except Exception as error:  # noqa: BLE001  # a file system raises of any kind
            raise BadOption(
                f"{environment.REMOTE_CACHE.name} cannot be opened",
                found=self._reason(error),
                fix="pip install 'opforge[remote]', and for schemes other than https:// and "
                "file:// the package that fsspec needs",
            ) from None

    def _open(self, url: str, parts: SplitResult) -> None:
        import fsspec

        if parts.scheme == "file":
            self._files = fsspec.filesystem("file", auto_mkdir=True)
            root = unquote(parts.path)
        elif parts.scheme in {"http", "https"}:
            import aiohttp

            wait = self._timeout
            timeout = aiohttp.ClientTimeout(total=5 * wait, sock_connect=wait, sock_read=wait)
            options = {"timeout": timeout, "trust_env": True}
            self._files = fsspec.filesystem("http", client_kwargs=options)
            self._files.batch_size = _AT_ONCE
            self._query = f"?{parts.query}" if parts.query else ""
            root = parts._replace(query="", fragment="").geturl()
        else:
            self._files, root = fsspec.core.url_to_fs(url)
        self._root = root.rstrip("/")

    def read(self, keys: Iterable[str]) -> dict[str, bytes]:
        """The entries that are there."""
        wanted = list(keys) if self._files else []
        try:
            places = list(map(self._place, wanted))
            answers = self._files.cat_ranges(places, 0, _LARGEST) if wanted else []
        except Exception as error:  # noqa: BLE001  # as above
            answers = [error]
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, FileNotFoundError):
                self._end(answer)
                break
        entries = zip(wanted, answers, strict=False)
        return {key: answer for key, answer in entries if not isinstance(answer, Exception)}

    def offer(self, key: str, content: bytes) -> None:
        """Keep an entry for `finish`."""
        self._offered[self._place(key)] = content

    def finish(self) -> None:
        """Write the entries that were offered."""
        if self._files and self._offered:
            try:
                self._files.pipe(self._offered)
            except Exception as error:  # noqa: BLE001  # as above
                self._end(error)
        self._offered = {}

    def _place(self, key: str) -> str:
        return f"{self._root}/{key}{self._query}"

    def _end(self, error: Exception) -> None:
        self._files = None
        what = f"the shared cache at {self.shown} is not used for the rest of the build"
        warn(f"{what}: {self._reason(error)}")

    def _reason(self, error: Exception) -> str:
        # Of Python 3.10, these are two classes.
        if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
            return f"no answer within {self._timeout:g} s"
        if hasattr(error, "status"):
            return f"it answered {error.status} {first_line(getattr(error, 'message', ''))}"
        if isinstance(error, OSError) and error.strerror:
            return first_line(error.strerror)
        return re.sub(r"\S+://\S+", self.shown, f"{type(error).__name__}: {first_line(error)}")


def _parsed(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
        is_folder = len(parts.path) > 1 and not parts.netloc
        is_whole = "://" in url and (is_folder if parts.scheme == "file" else parts.hostname)
    except ValueError:
        is_whole = False
    if is_whole:
        return parts
    raise BadOption(
        f"{environment.REMOTE_CACHE.name} is not a URL of a web server, folder or bucket",
        # It may have a password.
        found=url.partition("://")[0] + "://..." if "://" in url else url,
        fix="give a URL such as https://cache.example.com/kernels or file:///mnt/kernels",
    )
