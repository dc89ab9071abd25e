"""A wheel: its name, version and files, and the same files as the same bytes."""

from __future__ import annotations

import base64
import hashlib
import io
import keyword
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import opforge

from ..errors import BadOption, OutputNotWritable

# Packages that a wheel of that name would overwrite, or hide, as pip compares names.
_TAKEN = {
    "jax": "JAX", "jaxlib": "JAX", "kernels": "HuggingFace's kernels", "numpy": "NumPy",
    "opforge": "opforge", "pip": "pip", "setuptools": "setuptools", "torch": "PyTorch",
    "triton": "Triton", "tvm-ffi": "tvm-ffi", "wheel": "wheel",
}  # fmt: skip


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


def check_package_name(name: str, *, fix: str, origin: str = "") -> None:
    """Raise `BadOption` for a name that Python cannot import, or that imports another.

    `origin` says where a name comes from that nobody gave.
    """
    why = _why_not(name)
    if why:
        what = f"a Python package cannot be named {name}{origin}: {why}"
        raise BadOption(what, fix=fix)


def _why_not(name: str) -> str:
    taken = _TAKEN.get(re.sub("[-_.]+", "-", name).lower())
    if taken is not None:
        return f"it would overwrite or hide the package of {taken}"
    if name in sys.stdlib_module_names:
        return "it would hide a module of Python's standard library"
    if keyword.iskeyword(name):
        return "that is a keyword of Python"
    if not (name.isidentifier() and name.isascii()):
        return "a name has letters, digits and underscores, and a letter first"
    return ""


def package_name(folder: Path, given: str | None) -> str:
    """Of served kernels: the name that was asked for, or the folder's."""
    name = given or folder.resolve().name.replace("-", "_")
    origin = "" if given else ", after its folder"
    check_package_name(name, fix="choose another one: --name NAME", origin=origin)
    return name


def wheel_files(told: Distribution, package: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of the package below its name, and then `METADATA`, `WHEEL` and `RECORD`."""
    info = f"{told.name}-{told.version}.dist-info"
    whole = {f"{told.name}/{name}": content for name, content in sorted(package.items())}
    whole[f"{info}/METADATA"] = _lines(
        "Metadata-Version: 2.1",
        f"Name: {told.name}",
        f"Version: {told.version}",
        f"Summary: {told.summary}",
        "Requires-Python: >=3.10",
        *told.extras,
    )
    whole[f"{info}/WHEEL"] = _lines(
        "Wheel-Version: 1.0",
        f"Generator: opforge {opforge.__version__}",
        "Root-Is-Purelib: false",
        f"Tag: {told.tag}",
    )
    rows = [f"{name},{_digest(content)},{len(content)}" for name, content in whole.items()]
    whole[f"{info}/RECORD"] = _lines(*rows, f"{info}/RECORD,,")
    return whole


def archive_bytes(files: Mapping[str, bytes]) -> bytes:
    """The same files give the same bytes: those of `wheel` have the time of day."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
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


def _lines(*lines: str) -> bytes:
    return "\n".join([*lines, ""]).encode()


def _digest(content: bytes) -> str:
    """As RECORD has it: `sha256=47DEQpj8HBSa...`."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"
