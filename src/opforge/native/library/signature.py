"""Signatures of builds in minisign's format: `share/NAME/SHA256SUMS.minisig`.

`SHA256SUMS` has the hash of every file that a build wrote, so its signature covers them all.
py-minisign, by minisign's author, signs and verifies; `pip install 'opforge[sign]'`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from ...errors import BadOption, OutputNotWritable, Untrusted
from ..artifacts.sums import parse_sums, sums_path

SUFFIX = ".minisig"
_SUMS = sums_path("*")

# A file with a public key, or its text: "RWQf6LRCGA9i5...".
Key = str | os.PathLike[str]


def sign(places: Iterable[Path], key: Path, password: Callable[[], str]) -> list[Path]:
    """Sign each of these `SHA256SUMS`; `password` is asked if the key is encrypted."""
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


class PublicKeys:
    """Keys that are trusted; `BadOption` for what is not one."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._minisign = _minisign()
        if isinstance(keys, (str, os.PathLike)):
            fix = f"trusted_keys=[{os.fspath(keys)!r}]"
            raise BadOption(f"trusted_keys must be a list, got {keys!r}", fix=fix)
        if not isinstance(keys, Iterable) or isinstance(keys, bytes):
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
            raise Untrusted(f"{shown} is not signed: there is no {place.name}", fix=_SIGN) from None
        except ValueError as error:
            what = f"{shown}{SUFFIX} is not a signature: {error}"
            raise Untrusted(what, fix=_SIGN) from None
        for name, key in self._keys.items():
            try:
                key.verify(content, signature)
            except self._minisign.Error:
                continue
            return name
        raise Untrusted(
            f"none of the trusted keys has signed {shown}",
            found=f"a signature that says {signature.untrusted_comment!r}",
            fix="if you have built it since, sign it again; otherwise do not use it, or add the "
            "key of whoever signed it if you trust them",
        )


def read_trusted(root: Path, file: Path, keys: PublicKeys) -> bytes:
    """What a file of a build has; `Untrusted` unless a key has signed its hash."""
    try:
        content = file.read_bytes()
    except OSError as error:
        what = f"{file} is not trusted: it cannot be read: {error.strerror}"
        raise Untrusted(what, fix=_WHOLE) from None
    digest = hashlib.sha256(content).hexdigest()
    place = file.relative_to(root).as_posix()
    for sums in sorted(root.glob(_SUMS)):
        try:
            text = sums.read_bytes()
            written = parse_sums(text)
        except (OSError, ValueError):
            continue
        if written.get(place) == digest:
            keys.signer(sums, text)
            return content
    raise Untrusted(f"{file} is not trusted: no SHA256SUMS in {root / 'share'} has it", fix=_WHOLE)


def _public_key(minisign: ModuleType, key: Key) -> tuple[str, Any]:
    """A file, what is in one, or its last line alone; and what to call it."""
    if not isinstance(key, (str, os.PathLike)):
        what = f"a trusted key must be a file or the text of one, got {key!r}"
        raise BadOption(what, fix=_LIST)
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
        raise BadOption(
            "signatures need the package py-minisign", fix="pip install 'opforge[sign]'"
        ) from None
    found: ModuleType = minisign
    return found


_WHOLE = "copy the whole folder of the build, or build and sign it again"
_LIST = 'trusted_keys=["minisign.pub"]'
_NEW_KEY = "`minisign -G` makes a pair: minisign.key signs, minisign.pub is what others trust"
_SIGN = "whoever built it runs `opforge sign FOLDER --key minisign.key`"
