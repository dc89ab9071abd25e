"""Shared objects -> the platform of a wheel: `manylinux_2_34_x86_64`.

A wheel may go where glibc and libstdc++ have all the versions that its files ask for, and where
all libraries that they need belong to the system. Read from the files, which may be for another
machine than this one.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import NotALibrary
from ..native.artifacts.hashes import ELF_HEADER, ELF_MAGIC, ELF_SEGMENT

_MACHINES = {62: "x86_64", 183: "aarch64"}
_DYNAMIC = struct.Struct("<QQ")
_NEED = struct.Struct("<HHIII")
_VERSION = struct.Struct("<IHHII")
_LOAD, _DYNAMIC_SEGMENT = 1, 2
_NEEDED, _STRINGS, _VERNEED, _VERNEEDNUM = 1, 5, 0x6FFFFFFE, 0x6FFFFFFF

# What a system of each glibc has, as auditwheel judges: glibc's minor version, and the last
# versions of libstdc++, of its ABI and of libgcc. Older systems have no torch.
_SYSTEMS = (
    (17, "3.4.19", "1.3.7", "4.7.0"),
    (24, "3.4.22", "1.3.10", "4.7.0"),
    (26, "3.4.22", "1.3.10", "4.7.0"),
    (27, "3.4.24", "1.3.11", "7.0.0"),
    (28, "3.4.24", "1.3.11", "7.0.0"),
    (31, "3.4.28", "1.3.12", "7.0.0"),
    (34, "3.4.29", "1.3.13", "7.0.0"),
    (35, "3.4.30", "1.3.13", "11.0"),
    (36, "3.4.30", "1.3.13", "11.0"),
    (37, "3.4.30", "1.3.13", "11.0"),
    (38, "3.4.30", "1.3.13", "11.0"),
    (39, "3.4.33", "1.3.15", "14.0.0"),
    (40, "3.4.33", "1.3.15", "14.0.0"),
    (41, "3.4.33", "1.3.15", "14.0.0"),
)
# Versions that have a name in place of a number, and one that came with them.
_NAMED = {"GLIBC_ABI_DT_RELR": "2.36", "CXXABI_FLOAT128": "1.3.10", "CXXABI_TM_1": "1.3.7"}
_OF_THE_SYSTEM = re.compile(
    r"lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|atomic)\.so\.\d+|ld-linux-[\w-]+\.so\.\d+"
)
# Torch's, which whoever calls the operators has loaded.
_OF_TORCH = re.compile(r"lib(torch\w*|c10\w*)\.so")


@dataclass(frozen=True)
class SharedObject:
    """What a shared object asks of the system."""

    machine: str
    # Names of libraries; a path of its own folder begins with $ORIGIN.
    needed: tuple[str, ...]
    # As GLIBC_2.34, GLIBCXX_3.4.29.
    versions: frozenset[str]


@dataclass(frozen=True)
class Platform:
    """Where a wheel may go; `notes` say why it is not a manylinux one."""

    tag: str
    machine: str
    notes: tuple[str, ...] = ()


def platform_of(files: Mapping[Path, bytes]) -> Platform:
    """The oldest platform that all the files run on."""
    objects = {file: read_shared_object(file, content) for file, content in files.items()}
    machines = {file: found.machine for file, found in objects.items()}
    if len(set(machines.values())) > 1:
        raise NotALibrary(
            "a wheel is for one machine",
            found=", ".join(f"{file} for {machine}" for file, machine in machines.items()),
            fix="build the library and its adapter again, both on the same machine",
        )
    return tag_of(list(objects.values()))


def tag_of(objects: Sequence[SharedObject]) -> Platform:
    """As `platform_of`, of shared objects for one machine."""
    machine = objects[0].machine
    foreign = sorted({name for one in objects for name in one.needed if _is_foreign(name)})
    versions = {version for one in objects for version in one.versions}
    minor = _oldest(versions)
    notes = [f"{name} is not part of every Linux system" for name in foreign]
    if minor is None:
        notes.append(f"no known system has all of {', '.join(sorted(versions))}")
    if notes:
        return Platform(f"linux_{machine}", machine, tuple(notes))
    return Platform(f"manylinux_2_{minor}_{machine}", machine)


def read_shared_object(file: Path, content: bytes) -> SharedObject:
    """Raise `NotALibrary` for anything but a 64-bit shared object for a known machine."""
    try:
        return _read(content)
    except (struct.error, ValueError, IndexError, KeyError) as error:
        known = " or ".join(_MACHINES.values())
        raise NotALibrary(
            f"{file} is not a shared object for Linux on {known}",
            found=str(error) or None,
            fix="give the folder that `opforge build --torch -o` wrote",
        ) from None


def _read(content: bytes) -> SharedObject:
    if not content.startswith(ELF_MAGIC):
        raise ValueError("it does not begin as one")
    header = ELF_HEADER.unpack_from(content)
    machine, place, size, count = header[2], header[5], header[9], header[10]
    if machine not in _MACHINES:
        raise ValueError(f"it is for machine {machine} of ELF's list")
    segments = [ELF_SEGMENT.unpack_from(content, place + i * size) for i in range(count)]
    loaded = [(s[3], s[5], s[2]) for s in segments if s[0] == _LOAD]
    entries = list(_dynamic(content, segments))
    single = dict(entries)
    strings = _offset(single[_STRINGS], loaded)
    needed = [_text(content, strings + value) for tag, value in entries if tag == _NEEDED]
    versions: set[str] = set()
    if _VERNEED in single:
        at = _offset(single[_VERNEED], loaded)
        versions |= set(_versions(content, at, single[_VERNEEDNUM], strings))
    return SharedObject(_MACHINES[machine], tuple(needed), frozenset(versions))


def _dynamic(content: bytes, segments: Iterable[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    for segment in segments:
        if segment[0] == _DYNAMIC_SEGMENT:
            for at in range(segment[2], segment[2] + segment[5], _DYNAMIC.size):
                tag, value = _DYNAMIC.unpack_from(content, at)
                if tag == 0:
                    return
                yield tag, value


def _versions(content: bytes, at: int, count: int, strings: int) -> Iterator[str]:
    for _ in range(count):
        _, entries, _, first, following = _NEED.unpack_from(content, at)
        entry = at + first
        for _ in range(entries):
            _, _, _, name, further = _VERSION.unpack_from(content, entry)
            yield _text(content, strings + name)
            entry += further
        at += following


def _offset(address: int, loaded: Iterable[tuple[int, int, int]]) -> int:
    for start, size, offset in loaded:
        if start <= address < start + size:
            return address - start + offset
    raise ValueError("an address in it is outside of what is loaded")


def _text(content: bytes, at: int) -> str:
    return content[at : content.index(b"\0", at)].decode()


def _is_foreign(name: str) -> bool:
    own = name.startswith("$ORIGIN/")
    return not (own or _OF_THE_SYSTEM.fullmatch(name) or _OF_TORCH.fullmatch(name))


def _oldest(versions: Iterable[str]) -> int | None:
    """The minor version of the oldest glibc that comes with all of them; None if none does."""
    asked: dict[str, tuple[int, ...]] = {}
    for version in versions:
        family, _, number = version.partition("_")
        number = _NAMED.get(version, number)
        if not re.fullmatch(r"\d+(\.\d+)*", number):
            return None
        asked[family] = max(asked.get(family, ()), _numbers(number))
    for minor, *others in _SYSTEMS:
        has: dict[str, tuple[int, ...]] = {"GLIBC": (2, minor)}
        has |= zip(("GLIBCXX", "CXXABI", "GCC"), map(_numbers, others), strict=True)
        if all(number <= has.get(family, ()) for family, number in asked.items()):
            return minor
    return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
