"""Whether the files of a wheel are those that were packed, and those that were built."""

from __future__ import annotations

import csv
import io
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from ..errors import NotALibrary
from ..native.artifacts.sums import sums_path
from ..native.commands.verify import Rebuild, Verified, verify
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
                return [packed, *_built(Path(folder), path, rebuild_served, trusted_keys)]
    except (OSError, zipfile.BadZipFile, KeyError, NotImplementedError) as error:
        raise NotALibrary(f"{path} is not a wheel: {error}", fix=_GIVE) from None


def _built(
    folder: Path, path: str, rebuild_served: Rebuild, trusted_keys: Sequence[str]
) -> list[Verified]:
    roots = {place.parents[2] for place in folder.glob(f"**/{sums_path('*')}")}
    if not roots:
        raise NotALibrary(f"{path} holds nothing that opforge built", fix=_GIVE)
    return [
        one
        for root in sorted(roots)
        for one in verify(
            str(root),
            manifest_only=True,
            rebuild_served=rebuild_served,
            trusted_keys=trusted_keys,
        )
    ]


def _held(wheel: zipfile.ZipFile, name: str) -> Verified:
    """A wheel against its own list of files."""
    records = [n for n in wheel.namelist() if n.endswith(".dist-info/RECORD")]
    if len(records) != 1:
        raise KeyError(f"it has {len(records)} lists of its files, RECORD")
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
