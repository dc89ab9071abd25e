"""`opforge wheel`: what the command does and says."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadOption
from ..notebook import counted, size
from ..versions import OLDEST_TORCH
from .built import BuiltLibrary, is_served, read_built, read_served, served_files
from .hub_layout import write_hub_layout
from .package import callable_ops, package_files, result_classes
from .platform_tag import check_extra
from .rules import no_gradient
from .wheel_file import (
    Distribution,
    archive_bytes,
    check_version,
    package_name,
    wheel_files,
    write_whole,
)

_TORCH = ("Provides-Extra: torch", f'Requires-Dist: torch>={OLDEST_TORCH}; extra == "torch"')
# The first whose `jax.ffi` the module uses.
_JAX = ("Provides-Extra: jax", 'Requires-Dist: jax>=0.5; extra == "jax"')


def run(
    path: str, output: str, version: str, name: str | None = None, layout: str = "wheel"
) -> str:
    """Write the wheel of a built library or of served kernels, and report it."""
    check_extra()
    check_version(version)
    folder = Path(path)
    if is_served(folder) and layout != "wheel":
        raise BadOption(
            f"--layout {layout} is for libraries, and {path} holds served kernels",
            fix="leave out --layout",
        )
    if not is_served(folder) and name is not None:
        raise BadOption(
            "--name is for wheels of served kernels: that of a library has the library's name",
            fix=f"leave it out, or build the library again with `opforge build --name {name}`",
        )
    if layout == "kernels":
        return _lay_out(read_built(folder), Path(output), version)
    packed = pack(folder, version, name)
    content = archive_bytes(packed.files)
    file = Path(output, packed.told.file_name)
    write_whole(file, content)
    lines = [f"note: {note}" for note in packed.notes]
    return "\n".join([*lines, f"{file}: {packed.content}, {size(len(content))}"])


@dataclass(frozen=True)
class Packed:
    """A wheel that is not yet a file."""

    told: Distribution
    files: dict[str, bytes]
    # For people: what it has.
    content: str
    notes: list[str]


def pack(folder: Path, version: str, name: str | None = None) -> Packed:
    """The wheel of what was built into a folder."""
    if is_served(folder):
        served = read_served(folder, package_name(folder, name))
        archs = ", ".join(served.archs)
        told = Distribution(
            name=served.name,
            version=version,
            platform=served.platform.tag,
            summary=f"Triton kernels for {archs}, served by opforge",
            # The extension is a module for CPython 3.10 and later.
            python="cp310-abi3",
        )
        content = f"{counted(served.kernels, 'kernel')} for {archs}"
        notes = _about(served.platform.notes)
        return Packed(told, wheel_files(told, served_files(served)), content, notes)
    library = read_built(folder)
    told = Distribution(
        name=library.name,
        version=version,
        platform=library.platform.tag,
        summary=f"Native operators for {library.built_for}, built with opforge",
        extras=_TORCH + (_JAX if "jax.py" in library.files else ()),
    )
    files = wheel_files(told, {**library.files, **package_files(library, version)})
    return Packed(told, files, _told(library), _notes(library))


def _lay_out(library: BuiltLibrary, output: Path, version: str) -> str:
    places = write_hub_layout(library, output, version)
    notes = _notes(library)
    others = [arch for arch in library.archs if not arch.startswith("sm_")]
    if others:
        notes.append(f"it is not loaded on {', '.join(others)}: this layout is for CUDA")
    nvidias = tuple(arch for arch in library.archs if arch not in others)
    told = _told(dataclasses.replace(library, archs=nvidias))
    return "\n".join([*(f"note: {n}" for n in notes), *(f"{place}: {told}" for place in places)])


def _told(library: BuiltLibrary) -> str:
    return f"{counted(len(library.ops), 'operator')} for {library.built_for}"


def _notes(library: BuiltLibrary) -> list[str]:
    named = {op.name for op in callable_ops(library)}
    only = [op.torch_name for op in library.ops if op.name not in named]
    reach = [f"{name} is reached as torch.ops.{name.replace('::', '.')} only" for name in only]
    without = [
        f"{op.torch_name} has no gradient there: {why}"
        for op in library.ops
        if op.formula and (why := no_gradient(op, library.ops))
    ]
    results = result_classes(library)
    plain = [
        f"{op.torch_name} returns a plain tuple there: its {op.result[0]} has a name or fields "
        "that the package cannot give it"
        for op in callable_ops(library)
        if op.result and op.name not in results
    ]
    return [*library.notes, *reach, *without, *plain, *_about(library.platform.notes)]


def _about(platform_notes: Iterable[str]) -> list[str]:
    return [f"not a manylinux wheel: {note}" for note in platform_notes]
