"""Whether a file is the library that was built, asked before it is opened.

Opening a shared object runs it: one that is cut short ends the process, and one with other content
does anything. A loaded library's first call waits for this module.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

from ..artifacts.sums import read_sums, sums_path

ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
ELF_SEGMENT = struct.Struct("<IIQQQQQQ")
# ELF, of 64 bits, little-endian: what the libraries are. Others are left to the loader.
ELF_MAGIC = b"\x7fELF\x02\x01"


def refuse_damaged(file: Path, library: str) -> None:
    """Raise `NotALibrary` for a file of a library that is not as its build left it.

    `share/NAME/SHA256SUMS` beside `lib` has its hash, and what it does not list is not opened. A
    file that was copied without it must at least be complete. Hashing takes about 1 ms per MB.
    """
    try:
        content = file.read_bytes()
    except OSError:
        # The loader says what is wrong.
        return
    why = _cut_short(content)
    hashes = _recorded(file, library)
    place = f"lib/{file.resolve().name}"
    if hashes and place not in hashes:
        why = why or f"no SHA256SUMS beside it lists {place}"
    elif hashes and hashlib.sha256(content).hexdigest() != hashes[place]:
        why = why or "its content differs from what the build wrote"
    if why:
        from ...errors import NotALibrary

        raise NotALibrary(
            f"{file} is damaged, or was changed since it was built: {why}",
            fix=_again(file, library),
        )


def _again(file: Path, library: str) -> str:
    root = _root(file.resolve())
    if root is not None and (root / "_library.py").is_file():
        return f"install its wheel again: pip install --force-reinstall {library}"
    return "copy or build the library again"


def _root(file: Path) -> Path | None:
    """The folder of the build, if the file is where the build put it."""
    return file.parent.parent if file.parent.name == "lib" else None


def _recorded(file: Path, library: str) -> dict[str, str]:
    """The hashes of the library's build, or of the others in its folder."""
    root = _root(file.resolve())
    if root is None:
        return {}
    own = root / sums_path(library)
    listing = [own] if own.exists() else sorted(root.glob(sums_path("*")))
    hashes: dict[str, str] = {}
    try:
        for sums in listing:
            hashes |= read_sums(sums)
    except (OSError, ValueError) as error:
        from ...errors import NotALibrary

        what = f"{sums}, with the hashes of its build, cannot be read: {error}"
        raise NotALibrary(f"{file} is not opened: {what}", fix="build the library again") from None
    return hashes


def _cut_short(content: bytes) -> str:
    """Why a shared object is not complete; empty if it is."""
    if not content.startswith(ELF_MAGIC):
        return "" if content else "it is empty"
    if len(content) < ELF_HEADER.size:
        return "it ends in its header"
    header = ELF_HEADER.unpack_from(content)
    segments, sections = header[5], header[6]
    segment_size, segment_count, section_size, section_count = header[9:13]
    ends = [sections + section_size * section_count, segments + segment_size * segment_count]
    if segment_size == ELF_SEGMENT.size and ends[1] <= len(content):
        for number in range(segment_count):
            found = ELF_SEGMENT.unpack_from(content, segments + number * segment_size)
            ends.append(found[2] + found[5])
    if max(ends) > len(content):
        return f"it has {len(content)} bytes of at least {max(ends)}"
    return ""


# What tells a file from one that was put in its place: device, inode, size, time.
FileStamp = tuple[int, int, int, int]


def stamp_of(file: Path) -> FileStamp:
    found = file.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
