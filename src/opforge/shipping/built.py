"""The folder of a build, of a library or of served kernels, read for a wheel.

The library is not opened: it may be for a different machine.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import NotALibrary, StaleLibrary
from ..native.artifacts import build_record
from ..native.artifacts.build_record import stamp_path
from ..native.artifacts.hashes import VerifiedFiles, read_sums, sums_path
from ..native.codegen.torch_adapter import unadapted
from ..native.ir.cases import chosen
from ..native.ir.interface import Op
from ..native.library.manifest_reader import Manifest, ManifestOp, as_asked
from ..native.library.shared_library import (
    find_library,
    rebuild,
    refuse_damaged,
    refuse_other_format,
)
from ..serving import manifest as manifests
from ..serving.served_folder import extension_file
from .platform_tag import Platform, platform_of
from .wheel_file import check_package_name


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
    """Read what `opforge build --torch -o` wrote; all else is refused, with what to do."""
    file = find_library(path)
    name = file.name.removesuffix(".so").removeprefix("lib")
    root = file.resolve().parent.parent
    adapter = file.with_name(f"lib{name}_torch.so")
    if file.name != f"lib{name}.so" or file.resolve().parent.name != "lib":
        raise NotALibrary(
            f"{file} is not in the folder of a build",
            fix="give the folder that `opforge build --torch -o` wrote",
        )
    check_package_name(name, fix="build the library with another --name")
    if not adapter.is_file():
        raise NotALibrary(
            f"{path} was built without --torch: a wheel's functions call the torch adapter",
            found=f"no {adapter}",
            fix=f"build it, too: {_rebuild(file, root / stamp_path(name))}",
        )
    for one in (file, adapter):
        refuse_damaged(one, name)
    chosen = {p.relative_to(root).as_posix(): p.read_bytes() for p in _chosen(root, name)}
    _refuse_changed(root, name, chosen)
    files = {path.removeprefix(f"python/{name}/"): content for path, content in chosen.items()}
    described = files.get(f"share/{name}/manifest.json")
    if described is None or f"include/{name}.h" not in files:
        missing = f"share/{name}/manifest.json" if described is None else f"include/{name}.h"
        raise NotALibrary(
            f"{path} is not the whole folder of a build",
            found=f"no {missing}",
            fix="give the folder that `opforge build --torch -o` wrote",
        )
    binaries = {file: files[f"lib/{file.name}"], adapter: files[f"lib/{adapter.name}"]}
    platform = platform_of((file, adapter))
    manifest = Manifest(described, str(path))
    _check_builds(file, manifest, binaries)
    ops = [_with_built_values(one) for one in manifest.ops]
    refused = {op.name: unadapted(op) for op in ops}
    served = tuple(op for op in ops if not refused[op.name])
    if not served:
        raise NotALibrary(
            f"{path} has no operator that its torch adapter serves",
            found="; ".join(f"{op}: {why}" for op, why in refused.items()) or "no operators",
            fix="open it with opforge.native.open",
        )
    notes = [f"{op} is left out: {why}" for op, why in refused.items() if why]
    return BuiltLibrary(name, manifest.archs, served, platform, files, tuple(notes))


def _with_built_values(op: ManifestOp) -> Op:
    """With those values of its choices that the library was built for."""
    arguments = []
    for argument in op.op.arguments:
        told = chosen(op.cases, argument.name) if len(argument.values) > 1 else ()
        values = tuple(value for i, value in enumerate(argument.values) if i in told)
        arguments.append(replace(argument, values=values or argument.values))
    return replace(op.op, arguments=tuple(arguments))


def _rebuild(file: Path, record: Path) -> str:
    """The command that adds the adapter, with what the record of the build has of it."""
    stamp = build_record.read(record)
    given = {} if stamp is None else stamp.arguments
    source = " ".join(map(str, given.get("targets", ())))
    return rebuild(file, source, map(str, given.get("archs", ())), torch=True)


def _refuse_changed(root: Path, name: str, files: dict[str, bytes]) -> None:
    try:
        sums = read_sums(root / sums_path(name))
    except FileNotFoundError:
        # A library that was copied without them.
        return
    changed = [
        file
        for file, content in files.items()
        if file in sums and hashlib.sha256(content).hexdigest() != sums[file]
    ]
    if changed:
        raise NotALibrary(
            f"{root} is not as it was built, because somebody changed {', '.join(changed)}",
            fix="build it again, and pack what the build wrote",
        )


def _chosen(root: Path, name: str) -> list[Path]:
    """Not the sources, the record of the build, which names files of this machine, or libNAME.a.

    The hashes, and their signature if there is one, go along.
    """
    patterns = (
        f"include/{name}.h", f"include/{name}.hpp", f"include/{name}_dispatch.inc",
        "include/opforge/*", f"lib/lib{name}.so", f"lib/lib{name}_torch.so",
        f"lib/cmake/{name}/*", f"lib/pkgconfig/{name}.pc", f"share/{name}/manifest.json",
        f"{sums_path(name)}*",
        f"python/{name}/jax.py",
    )  # fmt: skip
    return sorted({p for pattern in patterns for p in root.glob(pattern) if p.is_file()})


def _check_builds(file: Path, manifest: Manifest, binaries: dict[Path, bytes]) -> None:
    """The manifest, the library and the adapter of one build, by a build of this format."""
    fix = f"build it again: {rebuild(file, torch=True)}"
    refuse_other_format(manifest, f"the manifest of {file}", lambda: fix)
    digest = hashlib.sha256(manifest.text).hexdigest()
    for one, content in binaries.items():
        if digest.encode() not in content:
            what = f"{one} is not of the same build as {manifest.content.get('name')}'s manifest"
            raise StaleLibrary(what, found=f"no manifest {digest[:12]} in it", fix=fix)


@dataclass(frozen=True)
class ServedKernels:
    """The kernels, and the files that go into a wheel, by their paths in the folder."""

    name: str
    archs: tuple[str, ...]
    kernels: int
    platform: Platform
    files: dict[str, bytes]


def is_served(path: Path) -> bool:
    return (path / manifests.NAME).is_file()


def read_served(folder: Path, name: str) -> ServedKernels:
    """Raise `Untrusted` for a folder that is not as it was built."""
    manifest = manifests.read(folder)
    extension = extension_file(folder)
    verified = VerifiedFiles(folder, "served")
    images = {
        image.file
        for kernel in manifest.kernels
        for instance in kernel.instances
        for variant in instance.variants
        for image in variant.images
    }
    # The hashes, and their signature if there is one.
    sums = [str(path.relative_to(folder)) for path in folder.glob(f"{sums_path('served')}*")]
    files = {
        file: verified.read(folder / file) for file in (manifests.NAME, extension.name, *images)
    }
    files |= {file: (folder / file).read_bytes() for file in sums}
    platform = platform_of((extension,))
    archs = tuple(map(str, manifest.archs))
    return ServedKernels(name, archs, len(manifest.kernels), platform, files)


def served_files(served: ServedKernels) -> dict[str, bytes]:
    """The files of the package, by their paths in it."""
    package = Path(__file__).with_name("shipped_kernels.py").read_bytes()
    folder = {f"kernels/{name}": content for name, content in served.files.items()}
    return {"__init__.py": package, "py.typed": b"", **folder}
