"""Shared objects -> the platform of a wheel, `manylinux_2_34_x86_64`, by auditwheel's policies.

Only the files are read: not this machine, which may be another than that of the wheel.
"""

from __future__ import annotations

import importlib
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadOption, NotALibrary

_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
# The dynamic linker; what lies beside the file; torch's, which whoever calls the operators has
# loaded.
_ANYWHERE = re.compile(r"ld-linux-[\w-]+\.so\.\d+|\$ORIGIN/.*|lib(torch\w*|c10\w*)\.so")


@dataclass(frozen=True)
class Platform:
    """Where a wheel may go; `notes` say why it is not a manylinux one."""

    tag: str
    machine: str
    notes: tuple[str, ...] = ()


def check_extra() -> None:
    """Raise `BadOption` without the packages that packing a wheel needs."""
    try:
        for package in ("auditwheel.policy", "packaging.version"):
            importlib.import_module(package)
    except ImportError as error:
        raise BadOption(
            "wheels need auditwheel and packaging",
            found=str(error),
            fix="pip install 'opforge[wheel]'",
        ) from None


def platform_of(files: Iterable[Path]) -> Platform:
    """The oldest platform that all the files run on."""
    from auditwheel.architecture import Architecture
    from auditwheel.libc import Libc
    from auditwheel.policy import WheelPolicies

    machines: dict[Path, str] = {}
    needed: set[str] = set()
    versions: dict[str, set[str]] = defaultdict(set)
    for file in files:
        machines[file], libraries, symbols = _read(file)
        needed.update(libraries)
        for library, version in symbols:
            versions[library].add(version)
    machine, *others = set(machines.values())
    if others:
        raise NotALibrary(
            "a wheel is for one machine",
            found=", ".join(f"{file} for {machine}" for file, machine in machines.items()),
            fix="build the library and its adapter again, both on the same machine",
        )
    policies = WheelPolicies(libc=Libc.GLIBC, arch=Architecture(machine))
    foreign = sorted(needed - policies.lowest.whitelist)
    notes = [
        f"{name} is not part of every Linux system"
        for name in foreign
        if not _ANYWHERE.fullmatch(name)
    ]
    policy = policies.versioned_symbols_policy(versions)
    if policy == policies.linux:
        asked = ", ".join(sorted(set().union(*versions.values())))
        notes.append(f"no known system has all of {asked}")
    return Platform(policies.linux.name if notes else policy.name, machine, tuple(notes))


def _read(file: Path) -> tuple[str, list[str], list[tuple[str, str]]]:
    """The machine, the libraries that it needs, and which versions of their symbols."""
    from auditwheel.elfutils import elf_find_versioned_symbols, elf_read_dt_needed
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        with file.open("rb") as stream:
            elf = ELFFile(stream)
            symbols = list(elf_find_versioned_symbols(elf))
            return _MACHINES[elf["e_machine"]], elf_read_dt_needed(file), symbols
    except (ELFError, KeyError, ValueError) as error:
        raise NotALibrary(
            f"{file} is not a shared object for Linux on {' or '.join(_MACHINES.values())}",
            found=str(error),
            fix="give the folder that `opforge build --torch -o` wrote",
        ) from None
