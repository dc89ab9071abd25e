"""Keeps compiled kernels between builds, under a hash of everything that goes into them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import stat
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from ... import environment
from ..._compat import compiling, kernel_hash
from ...arch import Arch
from ...records import Codecs, JsonCodec, as_text
from ..ir.kernel_request import Request
from ..ir.program import Image, TensorMap

# Part of every key; raise it when the stored format or the compile options change.
_FORMAT = 5


_IMAGE = Codecs(
    {
        Image: "arch cubin function num_warps shared global_scratch_size global_scratch_align "
        "profile_scratch_size num_ctas cooperative registers spills pdl maps "
        "descriptor_flags",
        TensorMap: "element element_size swizzle block is_padded_fp4",
    },
    # Of the cubin its length; the bytes stand behind the facts, and PTX is the rest of them.
    {bytes: JsonCodec(len, Codecs({}).of(int).read), Arch: as_text(Arch.named, "an architecture")},
).of(Image)


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
        content = encode(key, image)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            try:
                file.write(content)
                file.close()
                Path(file.name).replace(path)
            except BaseException:
                with contextlib.suppress(OSError):
                    Path(file.name).unlink()
                raise


# The default cache of `compile_all`.
USER_CACHE = Cache()


def cache_key(
    request: Request, arch: Arch, options: dict[str, object], *, full_paths: bool = True
) -> str:
    """A hash of everything that a compiled kernel depends on.

    Where it and what it calls stand is in it because cubins carry line numbers for profilers.
    """
    hashed = kernel_hash.hash_or_unique(request.fn)
    # A kernel of a compiled graph stands in no file.
    where = [p if full_paths else Path(p).name for p in (request.location, *hashed.places)]
    constants = [(name, compiling.constant_key(value)) for name, value in request.constants]
    content = (
        _FORMAT, arch, request.source, hashed.digest, full_paths, where, request.signature,
        constants, request.divisible, compiling.environment_key(arch, options),
    )  # fmt: skip
    return hashlib.sha256(repr(content).encode()).hexdigest()


def encode(key: str, image: Image) -> bytes:
    """An entry, as it stands in a file and in a shared cache."""
    body = _pack(image)
    return _digest(key, body) + b"\n" + body


def decode(key: str, content: bytes, place: str) -> Image:
    """The image of an entry that was found at a place; raises `CorruptEntry`."""
    digest, _, body = content.partition(b"\n")
    if digest != _digest(key, body):
        raise CorruptEntry(f"{place}: damaged")
    try:
        return _unpack(body)
    except (ValueError, RecursionError) as error:
        what = f"{place}: not in this version's format: {error}"
        raise CorruptEntry(what) from error


def _pack(image: Image) -> bytes:
    head = json.dumps(_IMAGE.write(image), sort_keys=True).encode()
    return b"\n".join([head, image.cubin + image.ptx.encode()])


def _unpack(body: bytes) -> Image:
    head, _, rest = body.partition(b"\n")
    facts: Image = _IMAGE.read(json.loads(head))
    size: Any = facts.cubin
    return replace(facts, cubin=rest[:size], ptx=rest[size:].decode())


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
