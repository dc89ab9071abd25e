"""`share/NAME/SHA256SUMS`, the hash of every file of a build, and signatures of it.

`sha256sum` writes and checks the same. It names no file outside the folder, so it can be shipped,
and signed: `SHA256SUMS.minisig` in minisign's format covers all files. py-minisign, by minisign's
author, signs and verifies; `pip install 'opforge[sign]'`.

A loaded library's first call waits for this module, so it imports little.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

SUFFIX = ".minisig"
_LINE = re.compile(r"([0-9a-f]{64})  ([^\\\n]+)")

# A file with a public key, or its text: "RWQf6LRCGA9i5...".
Key = str | os.PathLike[str]


def sums_path(name: str) -> str:
    """Where the hashes of a library's files go, in the output folder."""
    return f"share/{name}/SHA256SUMS"


def written_sums(digests: Mapping[str, str]) -> bytes:
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(digests.items())).encode()


def read_sums(path: Path) -> dict[str, str]:
    return parse_sums(path.read_bytes())


def parse_sums(content: bytes) -> dict[str, str]:
    """Paths in the output folder, and hashes; `ValueError` where a line is not such."""
    if not content:
        raise ValueError("a build was killed while it wrote its files")
    found = {}
    for number, line in enumerate(content.decode().rstrip("\n").split("\n"), 1):
        match = _LINE.fullmatch(line)
        if match is None or match[2].startswith("/") or ".." in match[2].split("/"):
            raise ValueError(f"line {number} is not a hash and a path in the folder")
        found[match[2]] = match[1]
    return found


def fault(file: Path, root: Path, name: str) -> str:
    """Why a file of library `name` is not opened: it is cut short, or its build does not list it.

    Opening a shared object that is cut short ends the process. One that was copied without its
    folder must be complete, and no more. Hashes are not compared: see `VerifiedFiles`.
    """
    try:
        why = _cut_short(file)
    except OSError:
        # The loader says what is wrong.
        return ""
    own = root / sums_path(name)
    places = [own] if own.exists() else sorted(root.glob(sums_path("*")))
    try:
        listed = {path for sums in places for path in read_sums(sums)}
    except (OSError, ValueError) as error:
        return f"SHA256SUMS cannot be read: {error}"
    place = file.relative_to(root)
    return why or (f"no SHA256SUMS lists {place}" if places and f"{place}" not in listed else "")


ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
ELF_SEGMENT = struct.Struct("<IIQQQQQQ")
# ELF, of 64 bits, little-endian: what the libraries are. Others are left to the loader.
ELF_MAGIC = b"\x7fELF\x02\x01"


def _cut_short(file: Path) -> str:
    """Why a shared object is not complete; empty if it is."""
    with file.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        head = opened.read(ELF_HEADER.size)
        if not head.startswith(ELF_MAGIC):
            return "" if size else "it is empty"
        if size < ELF_HEADER.size:
            return "it ends in its header"
        header = ELF_HEADER.unpack(head)
        segments, sections = header[5], header[6]
        segment_size, segment_count, section_size, section_count = header[9:13]
        ends = [sections + section_size * section_count, segments + segment_size * segment_count]
        if segment_size == ELF_SEGMENT.size and ends[1] <= size:
            opened.seek(segments)
            table = opened.read(segment_size * segment_count)
            ends += [found[2] + found[5] for found in ELF_SEGMENT.iter_unpack(table)]
    return f"it has {size} bytes of at least {max(ends)}" if max(ends) > size else ""


class VerifiedFiles:
    """The files that a build lists, read; `Untrusted` if their hashes are not the listed ones.

    What `read` returns is what its caller uses, so that nobody can change it in between. With
    keys, one of them must have signed the hashes.
    """

    def __init__(self, root: Path, name: str, keys: Iterable[Key] | None = None) -> None:
        self._root = root
        trusted = None if keys is None else PublicKeys(keys)
        sums = root / sums_path(name)
        try:
            content = sums.read_bytes()
            if trusted is not None:
                trusted.signer(sums, content)
            self._digests = parse_sums(content)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise _untrusted(f"{sums} cannot be read: {why}") from None

    def read(self, file: Path) -> bytes:
        try:
            content = file.read_bytes()
        except OSError as error:
            raise _untrusted(f"{file} cannot be read: {error.strerror}") from None
        listed = self._digests.get(file.relative_to(self._root).as_posix())
        if listed is None:
            raise _untrusted(f"{file} is not what was built: SHA256SUMS does not list it")
        if hashlib.sha256(content).hexdigest() != listed:
            raise _untrusted(f"{file} is not what was built: SHA256SUMS has another hash")
        return content


class PublicKeys:
    """Keys that are trusted; `BadOption` for what is not one."""

    def __init__(self, keys: Iterable[Key]) -> None:
        from ...errors import BadOption

        self._minisign = _minisign()
        if isinstance(keys, (str, bytes, os.PathLike)) or not isinstance(keys, Iterable):
            raise BadOption(f"trusted_keys must be a list, got {keys!r}", fix=_LIST)
        # By what people call them.
        self._keys = dict(_public_key(self._minisign, key) for key in keys)
        if not self._keys:
            raise BadOption("trusted_keys is empty, so nothing is trusted", fix=_NEW_KEY)

    def signer(self, sums: Path, content: bytes, shown: str = "") -> str:
        """The key that has signed this content of `SHA256SUMS`; or `Untrusted`, with `shown`."""
        shown = shown or str(sums)
        place = sums.with_name(sums.name + SUFFIX)
        try:
            signature = self._minisign.Signature.from_bytes(place.read_bytes())
        except OSError:
            raise _untrusted(f"{shown} is not signed: there is no {place.name}", _SIGN) from None
        except ValueError as error:
            raise _untrusted(f"{shown}{SUFFIX} is not a signature: {error}", _SIGN) from None
        for name, key in self._keys.items():
            try:
                key.verify(content, signature)
            except self._minisign.Error:
                continue
            return name
        raise _untrusted(
            f"none of the trusted keys has signed {shown}",
            "if you have built it since, sign it again; otherwise do not use it, or add the "
            "key of whoever signed it if you trust them",
            found=f"a signature that says {signature.untrusted_comment!r}",
        )


def sign(places: Iterable[Path], key: Path, password: Callable[[], str]) -> list[Path]:
    """Sign each of these `SHA256SUMS`; `password` is asked if the key is encrypted."""
    from ...errors import BadOption, OutputNotWritable

    minisign = _minisign()
    try:
        secret = minisign.SecretKey.from_bytes(key.read_bytes())
        if secret.is_encrypted():
            secret.decrypt(password())
    except OSError as error:
        raise BadOption(f"the key {key} cannot be read: {error.strerror}", fix=_NEW_KEY) from None
    except ValueError as error:
        fix = "give the key's password" if "password" in str(error) else _NEW_KEY
        raise BadOption(f"{key} cannot sign: {error}", fix=fix) from None
    written = []
    for sums in places:
        signature = secret.sign(sums.read_bytes(), trusted_comment=f"opforge {sums.parent.name}")
        place = sums.with_name(sums.name + SUFFIX)
        try:
            place.write_bytes(bytes(signature))
        except OSError as error:
            raise OutputNotWritable(
                f"{place} cannot be written: {error.strerror}", fix="sign a copy of the folder"
            ) from None
        written.append(place)
    return written


def _public_key(minisign: ModuleType, key: Key) -> tuple[str, Any]:
    """A file, what is in one, or its last line alone; and what to call it."""
    from ...errors import BadOption

    text = os.fspath(key).strip()
    why = "is not the text of a public key, nor is there such a file"
    try:
        if "\n" in text:
            found = minisign.PublicKey.from_bytes(f"{text}\n".encode())
        elif Path(text).is_file():
            why = "is not the file of a public key"
            return text, minisign.PublicKey.from_bytes(Path(text).read_bytes())
        else:
            found = minisign.PublicKey.from_base64(text)
    except ValueError as error:
        raise BadOption(f"{key} {why}: {error}", fix=_NEW_KEY) from None
    except OSError as error:
        raise BadOption(f"the key {key} cannot be read: {error.strerror}", fix=_NEW_KEY) from None
    return found.to_base64().decode(), found


def _minisign() -> ModuleType:
    try:
        import minisign
    except ImportError:
        from ...errors import BadOption

        raise BadOption(
            "signatures need the package py-minisign", fix="pip install 'opforge[sign]'"
        ) from None
    found: ModuleType = minisign
    return found


_WHOLE = "copy the whole folder of the build, or build and sign it again"
_LIST = 'trusted_keys=["minisign.pub"]'
_NEW_KEY = "`minisign -G` makes a pair: minisign.key signs, minisign.pub is what others trust"
_SIGN = "whoever built it runs `opforge sign FOLDER --key minisign.key`"


def _untrusted(what: str, fix: str = _WHOLE, found: str | None = None) -> Exception:
    from ...errors import Untrusted

    return Untrusted(what, found=found, fix=fix)
