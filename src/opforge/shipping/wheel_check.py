"""Whether the files of a wheel, or of what it installed, are those that were packed and built."""

from __future__ import annotations

import re
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import opforge

from ..errors import NotALibrary
from ..native.artifacts.hashes import sums_path
from ..native.commands.verify import Verified, package_at, verify
from .command import check_extra, is_served, pack

_PACKED_BY = re.compile(rb"^Generator: opforge (\S+)$", re.MULTILINE)
_VERSION = re.compile(rb"^__version__ = '([^'\n]+)'$", re.MULTILINE)
# Of the layout for HuggingFace's kernels; it is the user's.
_NOT_PACKED = "metadata.json"
_RECORD = ".dist-info/RECORD"
_HERE = opforge.__version__
_GIVE = "give a wheel that `opforge wheel` wrote"


def verify_wheel(path: str, *, manifest_only: bool, **given: Any) -> list[Verified]:
    """Its library or kernels against their SHA256SUMS, and then all against what opforge packs.

    RECORD is anybody's to write.
    """
    if not manifest_only:
        raise NotALibrary(
            f"{path} cannot be built again: a wheel has no sources",
            fix="verify the folder that it was packed from, or only its files: "
            "opforge verify --manifest-only",
        )
    check_extra()
    with tempfile.TemporaryDirectory(prefix="opforge-verify-") as folder:
        files = _unpacked(path, folder)
        roots = {place.parents[2] for place in Path(folder).glob(f"**/{sums_path('*')}")}
        records = [file for file in files if file.endswith(_RECORD)]
        if len(roots) != 1 or len(records) != 1:
            what = f"{path} holds {len(roots)} opforge builds and {len(records)} files RECORD"
            raise NotALibrary(f"{what}, expected one of each", fix=_GIVE)
        (root,), (record,) = roots, records
        shown = f"{path}/{root.relative_to(folder).as_posix()}"
        built = verify(str(root), manifest_only=True, shown=shown, **given)
        if not all(library.ok for library in built):
            return built
        # The wheel's file may have been renamed.
        name, _, version = record.removesuffix(_RECORD).partition("-")
        packed = pack(root, version, name if is_served(root) else None).files()
        generator = files.get(f"{name}-{version}.dist-info/WHEEL", b"")
        return [_compared(Path(path).name, files, packed, generator), *built]


def verify_package(path: str, **given: Any) -> list[Verified]:
    """The same of what a wheel has installed."""
    check_extra()
    package = package_at(path)
    assert package is not None
    built = verify(path, **given)
    if not all(library.ok for library in built):
        return built
    name = package.name
    files = {
        file.relative_to(package).as_posix(): file.read_bytes()
        for file in sorted(package.rglob("*"))
        if file.is_file()
    }
    files.pop(_NOT_PACKED, None)
    version = _VERSION.search(files.get("__init__.py", b""))
    root = package if (package / "share").exists() else package / "kernels"
    wheel = pack(
        root, "0.0.0" if version is None else version[1].decode(), name if is_served(root) else None
    )
    generators = [file.read_bytes() for file in package.parent.glob(f"{name}-*.dist-info/WHEEL")]
    # Those of the package, without METADATA, WHEEL and RECORD.
    compared = _compared(f"the package {name}", files, wheel.package, b"".join(generators))
    return [compared, *built]


def _compared(
    what: str, files: Mapping[str, bytes], packed: Mapping[str, bytes], generator: bytes
) -> Verified:
    different = {
        file: f"is not what opforge {_HERE} packs with these files"
        for file, content in files.items()
        if packed.get(file) != content
    }
    for file in [file for file in different if "__pycache__/" in file]:
        del different[file]
        folder, _, _ = file.rpartition("/")
        different[folder] = "has bytecode, which is loaded in place of the source: remove it"
    different |= dict.fromkeys(sorted(packed.keys() - files.keys()), "is gone")
    by = _PACKED_BY.search(generator)
    reasons: tuple[str, ...] = ()
    if different and by and by[1].decode() != _HERE:
        reasons = (f"opforge {by[1].decode()} packed it, and this is opforge {_HERE}",)
    against = f"what opforge {_HERE} packs"
    return Verified(what, len(files), False, different, reasons, against=against)


def _unpacked(path: str, folder: str) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
            files = {name: wheel.read(name) for name in names}
            wheel.extractall(folder)
    # zipfile raises RuntimeError for a file that says it is encrypted.
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise NotALibrary(f"{path} is not a wheel, or damaged: {error}", fix=_GIVE) from None
    # Of two with one name pip takes the last, others may take the first.
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise NotALibrary(f"{path} has several files {', '.join(twice)}", fix=_GIVE)
    return files
