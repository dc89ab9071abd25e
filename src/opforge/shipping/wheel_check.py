"""Whether the files of a wheel, or of what it installed, are those that were packed and built."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import re
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import opforge

from ..errors import NotALibrary, OpforgeError
from ..native.artifacts.hashes import read_sums, sums_path
from ..native.commands.verify import Verified, package_at, verify
from .command import run
from .served import is_served
from .wheel_file import record_digest

_PACKED_BY = re.compile(rb"^Generator: opforge (\S+)$", re.MULTILINE)
_VERSION = re.compile(rb"^__version__ = '([^'\n]+)'$", re.MULTILINE)
# Of the layout for HuggingFace's kernels; it is the user's.
_NOT_PACKED = "metadata.json"


def verify_wheel(path: str, *, manifest_only: bool, **given: Any) -> list[Verified]:
    """A wheel against its RECORD, and then its library or kernels against their SHA256SUMS."""
    if not manifest_only:
        raise NotALibrary(
            f"{path} cannot be built again: a wheel has no sources",
            fix="verify the folder that it was packed from, or only its files: "
            "opforge verify --manifest-only",
        )
    with _opened(path) as wheel:
        packed = _held(wheel, Path(path).name)
        if packed.different:
            return [packed]
        with tempfile.TemporaryDirectory(prefix="opforge-verify-") as folder:
            wheel.extractall(folder)
            root = _root(Path(folder), path)
            shown = f"{path}/{root.relative_to(folder).as_posix()}"
            built = verify(str(root), manifest_only=True, shown=shown, **given)
            if not all(one.ok for one in built):
                return [packed, *built]
            there = {file: wheel.read(file) for file in wheel.namelist()}
            # Its folder says so; the wheel's file may have been renamed.
            (info,) = (n for n in there if n.endswith(".dist-info/RECORD"))
            name, _, version = info.removesuffix(".dist-info/RECORD").partition("-")
            del there[info]
            wanted = _packed_again(root, name, version)
            wanted.pop(info, None)
            return [_compared(packed, there, wanted), *built]


def verify_package(path: str, **given: Any) -> list[Verified]:
    """What a wheel has installed: its library or kernels, and then the Python files around them."""
    package = package_at(path)
    assert package is not None
    built = verify(path, **given)
    name = package.name
    there = {
        file.relative_to(package).as_posix(): file.read_bytes()
        for file in sorted(package.rglob("*"))
        if file.is_file()
    }
    there.pop(_NOT_PACKED, None)
    packed = Verified(
        f"the package {name}", len(there), False, {}, against=f"what opforge {_HERE} packs"
    )
    if not all(one.ok for one in built):
        return built
    version = _VERSION.search(there.get("__init__.py", b""))
    root = package if (package / "share").exists() else package / "kernels"
    wanted = _packed_again(root, name, "0.0.0" if version is None else version[1].decode())
    info = next(iter(package.parent.glob(f"{name}-*.dist-info/WHEEL")), None)
    wheel = {} if info is None else {"WHEEL": info.read_bytes()}
    of_package = {
        file.partition("/")[2]: content
        for file, content in wanted.items()
        if ".dist-info/" not in file
    }
    return [_compared(packed, there, of_package, wheel), *built]


def _root(folder: Path, path: str) -> Path:
    """The folder with what was built; a wheel has one."""
    roots = {place.parents[2] for place in folder.glob(f"**/{sums_path('*')}")}
    if len(roots) != 1:
        raise NotALibrary(f"{path} holds {len(roots)} opforge builds, expected one", fix=_GIVE)
    return roots.pop()


def _packed_again(root: Path, name: str, version: str) -> dict[str, bytes]:
    """What a wheel of the files that the build wrote has: RECORD is anybody's to write."""
    with tempfile.TemporaryDirectory(prefix="opforge-verify-") as folder:
        source, output = Path(folder, "again"), Path(folder, "wheel")
        for sums in root.glob(sums_path("*")):
            beside = (str(p.relative_to(root)) for p in sums.parent.iterdir())
            for file in (*read_sums(sums), *beside):
                # A package has the Python files of a build at its top.
                found = root / file.removeprefix(f"python/{sums.parent.name}/")
                if found.is_file():
                    (source / file).parent.mkdir(parents=True, exist_ok=True)
                    (source / file).write_bytes(found.read_bytes())
        run(str(source), str(output), version, name if is_served(source) else None)
        (made,) = output.iterdir()
        with zipfile.ZipFile(made) as again:
            return {file: again.read(file) for file in again.namelist()}


def _compared(
    packed: Verified,
    there: Mapping[str, bytes],
    wanted: Mapping[str, bytes],
    told: Mapping[str, bytes] | None = None,
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
    of_wheel = (there if told is None else told).items()
    versions = [
        found
        for file, text in of_wheel
        if file.endswith("WHEEL")
        for found in _PACKED_BY.findall(text)
    ]
    others = {version.decode() for version in versions} - {_HERE}
    reasons = tuple(f"opforge {other} packed it, and this is opforge {_HERE}" for other in others)
    return dataclasses.replace(packed, different=different, reasons=reasons if different else ())


@contextlib.contextmanager
def _opened(path: str) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as wheel:
            yield wheel
    except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
        if isinstance(error, OpforgeError):
            raise
        raise NotALibrary(f"{path} is not a wheel: {error}", fix=_GIVE) from None


def _held(wheel: zipfile.ZipFile, name: str) -> Verified:
    """A wheel against its own list of files."""
    records = [n for n in wheel.namelist() if n.endswith(".dist-info/RECORD")]
    if len(records) != 1:
        raise zipfile.BadZipFile(f"it has {len(records)} files called RECORD, expected one")
    record = _read(wheel, records[0])
    if record is None:
        raise zipfile.BadZipFile(f"{records[0]} is damaged")
    rows = csv.reader(io.StringIO(record.decode(errors="replace")))
    listed = {row[0]: row[1] for row in rows if len(row) == 3}
    there = set(wheel.namelist())
    different = dict.fromkeys(sorted(listed.keys() - there), "is gone")
    counts = Counter(wheel.namelist())
    different |= {file: "is there more than once" for file, count in counts.items() if count > 1}
    for file in sorted(there - {*records}):
        if file not in listed:
            different[file] = "is not in RECORD"
        elif (content := _read(wheel, file)) is None:
            different[file] = "is damaged"
        elif listed[file] != record_digest(content):
            different[file] = "has changed"
    return Verified(name, len(listed), False, different, against="its RECORD")


def _read(wheel: zipfile.ZipFile, file: str) -> bytes | None:
    """A file of a wheel, or None where its bytes are not those that were packed."""
    try:
        return wheel.read(file)
    # zipfile raises the last one for a file that says it is encrypted.
    except (EOFError, zipfile.BadZipFile, zlib.error, RuntimeError):
        return None


_HERE = opforge.__version__
_GIVE = "give a wheel that `opforge wheel` wrote"
