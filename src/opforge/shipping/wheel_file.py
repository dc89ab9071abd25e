"""A wheel as a file: the same contents give the same bytes."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import opforge

from ..errors import BadOption, OutputNotWritable


@dataclass(frozen=True)
class Distribution:
    """What a wheel says of itself."""

    name: str
    version: str
    platform: str
    summary: str
    # Lines of METADATA.
    extras: tuple[str, ...] = ()
    # Which Python it is for, and with which ABI.
    python: str = "py3-none"

    @property
    def tag(self) -> str:
        return f"{self.python}-{self.platform}"

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}-{self.tag}.whl"


def check_version(version: str) -> None:
    """Raise `BadOption` for what is not a version as indexes and file names have it."""
    from packaging.version import InvalidVersion, Version

    try:
        is_version = str(Version(version)) == version
    except InvalidVersion:
        is_version = False
    if not is_version:
        raise BadOption(
            f"--version {version}: not the version of a Python package",
            fix="give one as 1.2.0, 1.2.0rc1 or 1.2.0+cu128",
        )


def wheel_bytes(told: Distribution, files: Mapping[str, bytes]) -> bytes:
    """The archive, with `METADATA`, `WHEEL` and `RECORD` added to the files."""
    info = f"{told.name}-{told.version}.dist-info"
    whole = dict(sorted(files.items()))
    whole[f"{info}/METADATA"] = _metadata(told).encode()
    whole[f"{info}/WHEEL"] = _wheel(told).encode()
    record = [f"{name},{record_digest(content)},{len(content)}" for name, content in whole.items()]
    record.append(f"{info}/RECORD,,")
    whole[f"{info}/RECORD"] = "\n".join([*record, ""]).encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in whole.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            archive.writestr(entry, content)
    return made.getvalue()


def write_whole(file: Path, content: bytes) -> None:
    """Write a file so that nobody sees a part of it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=".opforge-")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            Path(temporary).chmod(0o644)
            Path(temporary).replace(file)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OutputNotWritable(
            f"{file} cannot be written: {error.strerror}", fix="choose another folder with -o"
        ) from error


def _metadata(told: Distribution) -> str:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {told.name}",
        f"Version: {told.version}",
        f"Summary: {told.summary}",
        "Requires-Python: >=3.10",
        *told.extras,
    ]
    return "\n".join([*lines, ""])


def _wheel(told: Distribution) -> str:
    lines = [
        "Wheel-Version: 1.0",
        f"Generator: opforge {opforge.__version__}",
        "Root-Is-Purelib: false",
        f"Tag: {told.tag}",
    ]
    return "\n".join([*lines, ""])


def record_digest(content: bytes) -> str:
    """As RECORD has it: `sha256=47DEQpj8HBSa...`."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"
