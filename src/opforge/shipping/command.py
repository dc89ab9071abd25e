"""`opforge wheel`: what the command does and says."""

from __future__ import annotations

from pathlib import Path

from .built import BuiltLibrary, read_built
from .package import callable_ops, package_files
from .wheel_file import Distribution, check_version, wheel_bytes, write_whole

# The first whose stable ABI the adapters use.
_TORCH = ("Provides-Extra: torch", 'Requires-Dist: torch>=2.11; extra == "torch"')


def run(path: str, output: str, version: str = "0.0.0") -> str:
    """Write the wheel of a built library, and report it."""
    check_version(version)
    library = read_built(Path(path))
    told = Distribution(
        name=library.name,
        version=version,
        platform=library.platform.tag,
        summary=f"Native operators for {', '.join(library.archs)}, built with opforge",
        extras=_TORCH,
    )
    files = {**library.files, **package_files(library, version)}
    content = wheel_bytes(told, {f"{library.name}/{name}": text for name, text in files.items()})
    file = Path(output, told.file_name)
    write_whole(file, content)
    lines = [f"note: {note}" for note in _notes(library)]
    ops = len(library.ops)
    counted = f"{ops} operator{'' if ops == 1 else 's'} for {', '.join(library.archs)}"
    return "\n".join([*lines, f"{file}: {counted}, {len(content) / 1e6:.1f} MB"])


def _notes(library: BuiltLibrary) -> list[str]:
    named = {op.name for op in callable_ops(library)}
    only = [op.torch_name for op in library.ops if op.name not in named]
    reach = [f"{name} is reached as torch.ops.{name.replace('::', '.')} only" for name in only]
    return [*library.notes, *reach, *(f"no manylinux: {n}" for n in library.platform.notes)]
