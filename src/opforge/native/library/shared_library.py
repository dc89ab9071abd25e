"""A built library as a shared object: found, opened, and held against this opforge.

By itself, because the first call of a library that was loaded waits for what is imported here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._lazy import later
from ..ir.abi import ABI, STATUS_NAMES
from .manifest_reader import Manifest

if TYPE_CHECKING:
    from ... import errors
else:
    errors = later("opforge.errors")


def find_library(path: Path) -> Path:
    if not path.is_dir():
        return library_of(path)
    files = sorted([*path.glob("lib/lib*.so"), *path.glob("lib*.so")])
    found = [file for file in files if library_of(file) == file]
    if len(found) != 1:
        names = ", ".join(f.name for f in found) or "no lib*.so"
        fix = "give the .so itself" if found else "build it with `opforge build -o FOLDER`"
        raise errors.NotALibrary(f"{path}: one library is expected there", found=names, fix=fix)
    return found[0]


def rebuild(file: Path, source: str = "", archs: Iterable[str] = (), *, torch: bool = False) -> str:
    """The command that builds a library again: `opforge build ops.py --arch sm_80 -o dist`."""
    name = file.name.partition(".so")[0].removeprefix("lib")
    folder = file.parent.parent if file.parent.name == "lib" else file.parent
    # The manifest names images: sm_90a is what is made for sm_90.
    asked = "".join(f" --arch {arch.rstrip('af')}" for arch in archs)
    asked += " --torch" if torch else ""
    return f"opforge build {source or 'SOURCE.py'}{asked} --name {name} -o {folder}"


def library_of(file: Path) -> Path:
    """The library that a torch adapter goes with; any other file is its own."""
    base = file.with_name(f"{file.name.removesuffix('_torch.so')}.so")
    return base if file.name.endswith("_torch.so") and base.is_file() else file


class SharedLibrary:
    """The C functions of a library, and its manifest, as JSON and as `contents`."""

    def __init__(self, file: Path) -> None:
        name = file.name.partition(".so")[0].removeprefix("lib")
        try:
            self._c = ctypes.CDLL(str(file.resolve()))
            version = getattr(self._c, f"{name}_abi_version")()
        except (OSError, AttributeError) as error:
            raise errors.NotALibrary(f"{file} is no library of opforge's: {error}") from error
        if version != ABI:
            what = f"{file} has ABI {version}, and this opforge has ABI {ABI}"
            raise errors.NotALibrary(what, fix=f"build it again: {rebuild(file)}")
        self.file = file
        self.name = name
        self._text("last_error").restype = ctypes.c_char_p
        self._text("manifest").restype = ctypes.c_char_p
        self.contents = Manifest(self._text("manifest")())
        self.manifest = self.contents.content

    def load(self, device: int = 0) -> None:
        """Load every kernel for a device, so that no call has to."""
        self.call(f"{self.name}_load", [ctypes.c_int(device)])

    def unload(self, device: int = 0) -> None:
        """Give back what the device holds; no call may be under way."""
        self.call(f"{self.name}_unload", [ctypes.c_int(device)])

    def call(self, function: str, arguments: list[Any]) -> None:
        """A C function by name, and its failure as an exception."""
        status = getattr(self._c, function)(*arguments)
        if status != 0:
            error = errors.NativeCallFailed(self._text("last_error")().decode())
            error.status = STATUS_NAMES[status]
            raise error

    def _text(self, ending: str) -> Any:
        return getattr(self._c, f"{self.name}_{ending}")
