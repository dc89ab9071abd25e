"""Whether the files of a wheel, or of what it installed, are those that were packed and built."""

from __future__ import annotations

import dataclasses
import re
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import opforge

from ..errors import NotALibrary
from ..native.artifacts.hashes import read_sums, sums_path
from ..native.commands.verify import Verified, package_at, verify
from .built import is_served
from .command import pack
from .platform_tag import check_extra

_PACKED_BY = re.compile(rb"^Generator: opforge (\S+)$", re.MULTILINE)
_VERSION = re.compile(rb"^__version__ = '([^'\n]+)'$", re.MULTILINE)
# Of the layout for HuggingFace's kernels; it is the user's.
_NOT_PACKED = "metadata.json"
_RECORD = ".dist-info/RECORD"


def verify_wheel(path: str, *, manifest_only: bool, **given: Any) -> list[Verified]:
    """Its library or kernels against their SHA256SUMS, and then all against what opforge packs."""
    if not manifest_only:
        raise NotALibrary(
            f"{path} cannot be built again: a wheel has no sources",
            fix="verify the folder that it was packed from, or only its files: "
            "opforge verify --manifest-only",
        )
    with tempfile.TemporaryDirectory(prefix="opforge-verify-") as folder:
        there, different = _unpacked(path, folder)
        packed = Verified(Path(path).name, len(there), False, different, against=_AGAINST)
        if different:
            return [packed]
        root = _root(Path(folder), path)
        shown = f"{path}/{root.relative_to(folder).as_posix()}"
        built = verify(str(root), manifest_only=True, shown=shown, **given)
        if not all(one.ok for one in built):
            return built
        # Its folder says so; the wheel's file may have been renamed.
        (info,) = {Path(file).parts[0] for file in there if file.endswith(_RECORD)}
        name, _, version = info.removesuffix(".dist-info").partition("-")
        wanted = _packed_again(root, name, version)
        return [_compared(packed, there, wanted, there.get(f"{info}/WHEEL")), *built]


def verify_package(path: str, **given: Any) -> list[Verified]:
    """The same of what a wheel has installed."""
    package = package_at(path)
    assert package is not None
    built = verify(path, **given)
    if not all(one.ok for one in built):
        return built
    name = package.name
    there = {
        file.relative_to(package).as_posix(): file.read_bytes()
        for file in sorted(package.rglob("*"))
        if file.is_file()
    }
    there.pop(_NOT_PACKED, None)
    version = _VERSION.search(there.get("__init__.py", b""))
    root = package if (package / "share").exists() else package / "kernels"
    wheel = _packed_again(root, name, "0.0.0" if version is None else version[1].decode())
    wanted = {
        file.partition("/")[2]: content
        for file, content in wheel.items()
        if ".dist-info/" not in file
    }
    info = [file.read_bytes() for file in package.parent.glob(f"{name}-*.dist-info/WHEEL")]
    packed = Verified(f"the package {name}", len(there), False, {}, against=_AGAINST)
    return [_compared(packed, there, wanted, info[0] if info else None), *built]


def _root(folder: Path, path: str) -> Path:
    """The folder with what was built; a wheel has one."""
    roots = {place.parents[2] for place in folder.glob(f"**/{sums_path('*')}")}
    if len(roots) != 1:
        raise NotALibrary(f"{path} holds {len(roots)} opforge builds, expected one", fix=_GIVE)
    return roots.pop()


def _packed_again(root: Path, name: str, version: str) -> dict[str, bytes]:
    """What a wheel of the files that the build wrote has: RECORD is anybody's to write."""
    check_extra()
    with tempfile.TemporaryDirectory(prefix="opforge-verify-") as folder:
        source = Path(folder, "again")
        for sums in root.glob(sums_path("*")):
            beside = (str(p.relative_to(root)) for p in sums.parent.iterdir())
            for file in (*read_sums(sums), *beside):
                # A package has the Python files of a build at its top.
                found = root / file.removeprefix(f"python/{sums.parent.name}/")
                if found.is_file():
                    (source / file).parent.mkdir(parents=True, exist_ok=True)
                    (source / file).write_bytes(found.read_bytes())
        return pack(source, version, name if is_served(source) else None).files


def _compared(
    packed: Verified,
    there: Mapping[str, bytes],
    wanted: Mapping[str, bytes],
    told: bytes | None,
) -> Verified:
    different = {
        file: f"is not what opforge {_HERE} packs with these files"
        for file, content in there.items()
        if wanted.get(file) != content
    }
    for file in [file for file in different if "__pycache__/" in file]:
        del different[file]
        folder, _, _ = file.rpartition("/")
        different[folder] = "has bytecode, which is loaded in place of the source: remove it"
    different |= dict.fromkeys(sorted(wanted.keys() - there.keys()), "is gone")
    packed_by = _PACKED_BY.search(told or b"")
    others = {packed_by[1].decode()} - {_HERE} if packed_by else set()
    reasons = tuple(f"opforge {other} packed it, and this is opforge {_HERE}" for other in others)
    return dataclasses.replace(packed, different=different, reasons=reasons if different else ())


def _unpacked(path: str, folder: str) -> tuple[dict[str, bytes], dict[str, str]]:
    """Unpack a wheel; its files, and what is wrong with some of them."""
    files: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(path) as wheel:
            counts = Counter(wheel.namelist())
            wrong = {file: "is there more than once" for file, n in counts.items() if n > 1}
            for file in counts:
                content = _read(wheel, file)
                if content is None:
                    wrong[file] = "is damaged"
                else:
                    files[file] = content
            if not wrong:
                wheel.extractall(folder)
    except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
        raise NotALibrary(f"{path} is not a wheel: {error}", fix=_GIVE) from None
    records = sum(file.endswith(_RECORD) for file in counts)
    if records != 1:
        why = f"it has {records} files called RECORD, expected one"
        raise NotALibrary(f"{path} is not a wheel: {why}", fix=_GIVE)
    return files, wrong


def _read(wheel: zipfile.ZipFile, file: str) -> bytes | None:
    """A file of a wheel, or None where its bytes are not those that were packed."""
    try:
        return wheel.read(file)
    # zipfile raises the last one for a file that says it is encrypted.
    except (EOFError, zipfile.BadZipFile, zlib.error, RuntimeError):
        return None


_HERE = opforge.__version__
_AGAINST = f"what opforge {_HERE} packs"
_GIVE = "give a wheel that `opforge wheel` wrote"
