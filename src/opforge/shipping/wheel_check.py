"""Whether the files of a wheel are those that were packed, and those that were built."""

from __future__ import annotations

import csv
import dataclasses
import io
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import opforge

from ..errors import NotALibrary, OpforgeError
from ..native.artifacts.sums import read_sums, sums_path
from ..native.commands.verify import Rebuild, Verified, verify
from .command import run
from .served import is_served
from .wheel_file import record_digest


def verify_wheel(
    path: str, *, manifest_only: bool, rebuild_served: Rebuild, trusted_keys: Sequence[str] = ()
) -> list[Verified]:
    """A wheel against its RECORD, and then its library or kernels against their SHA256SUMS."""
    if not manifest_only:
        raise NotALibrary(
            f"{path} cannot be built again: a wheel has no sources",
            fix="verify the folder that it was packed from, or only its files: "
            "opforge verify --manifest-only",
        )
    try:
        with zipfile.ZipFile(path) as wheel:
            packed = _held(wheel, Path(path).name)
            if packed.different:
                return [packed]
            with tempfile.TemporaryDirectory(prefix="opforge-verify-") as folder:
                wheel.extractall(folder)
                root = _root(Path(folder), path)
                built = verify(
                    str(root),
                    manifest_only=True,
                    rebuild_served=rebuild_served,
                    trusted_keys=trusted_keys,
                )
                if any(one.different for one in built):
                    return [packed, *built]
                return [_packed_again(wheel, packed, root, Path(folder)), *built]
    except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
        if isinstance(error, OpforgeError):
            raise
        raise NotALibrary(f"{path} is not a wheel: {error}", fix=_GIVE) from None


def _root(folder: Path, path: str) -> Path:
    """The folder with what was built; a wheel has one."""
    roots = {place.parents[2] for place in folder.glob(f"**/{sums_path('*')}")}
    if len(roots) != 1:
        raise NotALibrary(f"{path} holds {len(roots)} builds of opforge, and not one", fix=_GIVE)
    return roots.pop()


def _packed_again(wheel: zipfile.ZipFile, packed: Verified, root: Path, folder: Path) -> Verified:
    """The wheel against one of the files that the build wrote: RECORD is anybody's to write."""
    # Its folder says so; the wheel's file may have been renamed.
    (info,) = (n for n in wheel.namelist() if n.endswith(".dist-info/RECORD"))
    name, _, version = info.removesuffix(".dist-info/RECORD").partition("-")
    source, output = folder / "again", folder / "wheel"
    for sums in root.glob(sums_path("*")):
        for file in (*read_sums(sums), *(str(p.relative_to(root)) for p in sums.parent.iterdir())):
            # A package has the Python files of a build at its top.
            found = root / file.removeprefix(f"python/{sums.parent.name}/")
            if found.is_file():
                (source / file).parent.mkdir(parents=True, exist_ok=True)
                (source / file).write_bytes(found.read_bytes())
    run(str(source), str(output), version, name if is_served(source) else None)
    (made,) = output.iterdir()
    with zipfile.ZipFile(made) as again:
        wanted = {file: again.read(file) for file in again.namelist()}
    different = {
        file: f"is not what opforge {opforge.__version__} packs with these files"
        for file in wheel.namelist()
        if not file.endswith("RECORD") and wanted.get(file) != wheel.read(file)
    }
    different |= dict.fromkeys(wanted.keys() - {*wheel.namelist()}, "is gone")
    return dataclasses.replace(packed, different=different)


def _held(wheel: zipfile.ZipFile, name: str) -> Verified:
    """A wheel against its own list of files."""
    records = [n for n in wheel.namelist() if n.endswith(".dist-info/RECORD")]
    if len(records) != 1:
        raise zipfile.BadZipFile(f"it has {len(records)} files called RECORD, and not one")
    rows = csv.reader(io.StringIO(wheel.read(records[0]).decode(errors="replace")))
    listed = {row[0]: row[1] for row in rows if len(row) == 3}
    there = set(wheel.namelist())
    different = dict.fromkeys(sorted(listed.keys() - there), "is gone")
    for file in sorted(there - {*records}):
        if file not in listed:
            different[file] = "is not in RECORD"
        elif listed[file] != record_digest(wheel.read(file)):
            different[file] = "has other bytes"
    return Verified(name, len(listed), False, different)


_GIVE = "give a wheel that `opforge wheel` wrote"
