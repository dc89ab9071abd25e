"""What a build wrote, a library or served kernels, read for a wheel.

The library is not opened: it may be for a different machine.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import NotALibrary, Untrusted
from ..native.artifacts.hashes import SUFFIX, read_sums, sums_path
from ..native.codegen.bindings import unadapted
from ..native.ir.cases import chosen
from ..native.ir.interface import Op
from ..native.library.manifest_reader import Manifest, ManifestOp, as_asked
from ..native.library.shared_library import (
    find_library,
    library_name,
    rebuild,
    refuse_other_format,
)

_GIVE = "give the folder that `opforge build --torch -o` wrote"
# Only a build needs them: sources, libNAME.a, its record, and the package `python/NAME`.
_LEFT_OUT = re.compile(r"src/.*|.*\.a|share/.*/build\.json|python/.*/__init__\.py")
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


@dataclass(frozen=True)
class BuiltLibrary:
    """A library with its torch adapter: the files of a build that go into a wheel."""

    name: str
    archs: tuple[str, ...]
    # Those that the adapter serves.
    ops: tuple[Op, ...]
    platform: Platform
    # By their paths in the package, which are those in the folder of the build but for jax.py.
    files: dict[str, bytes]
    notes: tuple[str, ...]

    @property
    def built_for(self) -> str:
        """As `opforge build --arch` has it: `sm_90`, whose images are for `sm_90a`."""
        return ", ".join(as_asked(arch) for arch in self.archs)


def read_built(path: Path) -> BuiltLibrary:
    """What `opforge build --torch -o` wrote, or the package that a wheel of it has installed."""
    file = find_library(path).resolve()
    name, root = library_name(file), file.parent.parent
    adapter = file.with_name(f"lib{name}_torch.so")
    if not (root / sums_path(name)).is_file() or file.parent != root / "lib":
        raise NotALibrary(f"{file} is not in the folder of a build", fix=_GIVE)
    if not adapter.is_file():
        raise NotALibrary(
            f"{path} was built without --torch: a wheel's functions call the torch adapter",
            found=f"no {adapter}",
            fix=f"build it, too: {rebuild(file, torch=True)}",
        )
    files = listed_files(root, name)
    manifest = Manifest(files[f"share/{name}/manifest.json"], str(path))
    refuse_other_format(
        manifest, f"the manifest of {path}", lambda: f"build it again: {rebuild(file, torch=True)}"
    )
    ops = [_with_built_values(op) for op in manifest.ops]
    refused = {op.name: unadapted(op) for op in ops}
    served = tuple(op for op in ops if not refused[op.name])
    if not served:
        raise NotALibrary(
            f"{path} has no operator that its torch adapter serves",
            found="; ".join(f"{op}: {why}" for op, why in refused.items()) or "no operators",
            fix="open it with opforge.native.open",
        )
    notes = [f"{op} is left out: {why}" for op, why in refused.items() if why]
    platform = platform_of((file, adapter))
    return BuiltLibrary(name, manifest.archs, served, platform, files, tuple(notes))


def listed_files(root: Path, name: str) -> dict[str, bytes]:
    """The files that a build lists and a wheel has, as they were built, by paths in a package.

    The hashes, and their signature if there is one, go along.
    """
    sums = root / sums_path(name)
    try:
        digests = read_sums(sums)
    except ValueError as error:
        raise Untrusted(f"{sums} cannot be read: {error}", fix="build it again") from None
    files = {}
    for listed, digest in digests.items():
        if _LEFT_OUT.fullmatch(listed):
            continue
        # A package has the Python files of a build at its top.
        place = listed.removeprefix(f"python/{name}/")
        file = next((f for f in (root / listed, root / place) if f.is_file()), None)
        files[place] = b"" if file is None else file.read_bytes()
        if hashlib.sha256(files[place]).hexdigest() != digest:
            raise Untrusted(
                f"{root} is not as it was built: {listed} {'has changed' if file else 'is gone'}",
                fix="build it again, and pack what the build wrote",
            )
    both = (sums, sums.with_name(sums.name + SUFFIX))
    files |= {f.relative_to(root).as_posix(): f.read_bytes() for f in both if f.is_file()}
    return files


def _with_built_values(op: ManifestOp) -> Op:
    """With those values of its choices that the library was built for."""
    arguments = []
    for argument in op.op.arguments:
        used = chosen(op.cases, argument.name) if len(argument.values) > 1 else ()
        values = tuple(value for i, value in enumerate(argument.values) if i in used)
        arguments.append(replace(argument, values=values or argument.values))
    return replace(op.op, arguments=tuple(arguments))


def platform_of(files: Iterable[Path]) -> Platform:
    """The oldest platform that all the files run on, by auditwheel's policies.

    Only the files are read: not this machine, which may be another than that of the wheel.
    """
    from auditwheel.architecture import Architecture
    from auditwheel.elfutils import elf_find_versioned_symbols, elf_read_dt_needed
    from auditwheel.libc import Libc
    from auditwheel.policy import WheelPolicies
    from elftools.elf.elffile import ELFFile

    machine = ""
    needed: set[str] = set()
    versions: dict[str, set[str]] = defaultdict(set)
    for file in files:
        needed.update(elf_read_dt_needed(file))
        with file.open("rb") as stream:
            elf = ELFFile(stream)
            machine = _MACHINES.get(elf["e_machine"], "")
            for library, version in elf_find_versioned_symbols(elf):
                versions[library].add(version)
        if not machine:
            raise NotALibrary(
                f"{file} is not for {' or '.join(_MACHINES.values())}, as wheels for Linux are",
                found=elf["e_machine"],
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
