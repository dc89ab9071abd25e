"""Keeps compiled kernels between builds, under a hash of everything that goes into them."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
from pathlib import Path

from ... import environment
from ..._compat import compiling
from ..ir.kernel_request import Request
from ..ir.program import Image

# Part of every key; raise it when the stored format or the compile options change.
_FORMAT = 1


class CorruptEntry(Exception):
    """An entry is damaged; the message says which."""


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
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CorruptEntry(f"{path}: {error.strerror}") from error
        digest, _, body = content.partition(b"\n")
        if digest != _digest(body):
            raise CorruptEntry(f"{path}: damaged")
        try:
            return _unpack(body)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptEntry(f"{path}: not in this version's format") from error

    def write(self, key: str, image: Image) -> None:
        """Store an image; raises `OSError` if the folder cannot be written to."""
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        body = _pack(image)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            try:
                file.write(_digest(body) + b"\n" + body)
                file.close()
                Path(file.name).replace(path)
            except BaseException:
                with contextlib.suppress(OSError):
                    Path(file.name).unlink()
                raise


# The default cache of `compile_all`.
USER_CACHE = Cache()


def cache_key(
    request: Request, arch: int, options: dict[str, object], *, full_paths: bool = True
) -> str:
    """A hash of everything that a compiled kernel depends on.

    The kernel's `file:line` is in it because cubins carry line numbers for profilers.
    """
    location = request.location if full_paths else Path(request.location).name
    constants = [(name, compiling.constant_key(value)) for name, value in request.constants]
    content = (
        _FORMAT, arch, request.source, full_paths, location, request.signature, constants,
        request.divisible, compiling.environment_key(arch, options),
    )  # fmt: skip
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _pack(image: Image) -> bytes:
    facts = dataclasses.asdict(image) | {"cubin": len(image.cubin), "ptx": ""}
    head = json.dumps(facts, sort_keys=True).encode()
    return b"\n".join([head, image.cubin + image.ptx.encode()])


def _unpack(body: bytes) -> Image:
    head, _, rest = body.partition(b"\n")
    facts = json.loads(head)
    size = facts["cubin"]
    return Image(**facts | {"cubin": rest[:size], "ptx": rest[size:].decode()})


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()
