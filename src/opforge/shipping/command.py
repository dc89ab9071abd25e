"""`opforge wheel`: what the command does and says."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..errors import BadOption
from ..notebook import counted, size
from ..versions import OLDEST_TORCH
from .built import BuiltLibrary, read_built
from .names import package_name
from .package import callable_ops, package_files, result_classes
from .platform_tag import check_extra
from .rules import no_gradient
from .wheel_file import Distribution, check_version, wheel_bytes, write_whole

_TORCH = ("Provides-Extra: torch", f'Requires-Dist: torch>={OLDEST_TORCH}; extra == "torch"')
# The first whose `jax.ffi` the module uses.
_JAX = ("Provides-Extra: jax", 'Requires-Dist: jax>=0.5; extra == "jax"')


def run(
    path: str, output: str, version: str, name: str | None = None, layout: str = "wheel"
) -> str:
    """Write the wheel of a built library or of served kernels, and report it."""
    from .served import is_served

    check_extra()
    check_version(version)
    folder = Path(path)
    if is_served(folder):
        if layout != "wheel":
            raise BadOption(
                f"--layout {layout} is for libraries, and {path} holds served kernels",
                fix="leave out --layout",
            )
        return _pack_served(folder, output, version, name)
    if name is not None:
        raise BadOption(
            "--name is for wheels of served kernels: that of a library has the library's name",
            fix=f"leave it out, or build the library again with `opforge build --name {name}`",
        )
    library = read_built(folder)
    if layout == "kernels":
        return _lay_out(library, Path(output), version)
    return _pack_library(library, output, version)


def _lay_out(library: BuiltLibrary, output: Path, version: str) -> str:
    from .hub_layout import write_hub_layout

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


def _pack_library(library: BuiltLibrary, output: str, version: str) -> str:
    told = Distribution(
        name=library.name,
        version=version,
        platform=library.platform.tag,
        summary=f"Native operators for {library.built_for}, built with opforge",
        extras=_TORCH + (_JAX if "jax.py" in library.files else ()),
    )
    files = {**library.files, **package_files(library, version)}
    return _write(told, files, output, _told(library), _notes(library))


def _pack_served(folder: Path, output: str, version: str, name: str | None) -> str:
    from .served import read_served, served_files

    served = read_served(folder, package_name(folder, name))
    told = Distribution(
        name=served.name,
        version=version,
        platform=served.platform.tag,
        summary=f"Triton kernels for {', '.join(served.archs)}, served by opforge",
        # The extension is a module for CPython 3.10 and later.
        python="cp310-abi3",
    )
    said = f"{counted(served.kernels, 'kernel')} for {', '.join(served.archs)}"
    return _write(told, served_files(served), output, said, _about(served.platform.notes))


def _write(
    told: Distribution, files: Mapping[str, bytes], output: str, said: str, notes: Iterable[str]
) -> str:
    content = wheel_bytes(told, {f"{told.name}/{name}": text for name, text in files.items()})
    file = Path(output, told.file_name)
    write_whole(file, content)
    lines = [f"note: {note}" for note in notes]
    return "\n".join([*lines, f"{file}: {said}, {size(len(content))}"])


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
