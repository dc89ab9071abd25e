"""A built library as a shared object: found, opened, and compared with this opforge.

A loaded library's first call waits for this module, so it imports little.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..ir.abi import ABI, STATUS_NAMES
from .manifest_reader import Manifest


def find_library(path: Path) -> Path:
    """The library that is meant by its file, its torch adapter, or the folder of a build."""
    if not path.exists():
        from ...errors import NotALibrary

        command = rebuild(path) if path.suffix == ".so" else f"opforge build SOURCE.py -o {path}"
        raise NotALibrary(f"there is no {path}", fix=f"build it: {command}")
    if not path.is_dir():
        return _without_adapter(path)
    folders = [folder for folder in (path / "lib", path) if folder.is_dir()]
    files = sorted(file for folder in folders for file in folder.iterdir() if _is_named_so(file))
    found = [file for file in files if _without_adapter(file) == file]
    if len(found) != 1:
        from ...errors import NotALibrary

        names = ", ".join(f.name for f in found) or "no lib*.so"
        fix = "give the .so itself" if found else "build it with `opforge build -o FOLDER`"
        raise NotALibrary(f"{path}: expected one library there", found=names, fix=fix)
    return found[0]


def rebuild(file: Path, source: str = "", archs: Iterable[str] = (), *, torch: bool = False) -> str:
    """The command that builds a library again: `opforge build ops.py --arch sm_80 -o dist`."""
    folder = file.parent.parent if file.parent.name == "lib" else file.parent
    # The manifest names images: sm_90a is what is made for sm_90.
    asked = "".join(f" --arch {arch.rstrip('af')}" for arch in archs)
    asked += " --torch" if torch else ""
    return f"opforge build {source or 'SOURCE.py'}{asked} --name {_name(file)} -o {folder}"


def shortened(names: Iterable[str], most: int = 6) -> str:
    """Names for a `repr`: `add, matmul, pick and 12 more`."""
    shown = list(names)
    rest = len(shown) - most
    return ", ".join(shown) if rest <= 0 else f"{', '.join(shown[:most])} and {rest} more"


def _is_named_so(file: Path) -> bool:
    return file.name.startswith("lib") and file.name.endswith(".so")


def _without_adapter(file: Path) -> Path:
    """The library that a torch adapter goes with; any other file is its own."""
    base = file.with_name(f"{file.name.removesuffix('_torch.so')}.so")
    return base if file.name.endswith("_torch.so") and base.is_file() else file


def _name(file: Path) -> str:
    return file.name.partition(".so")[0].removeprefix("lib")


class SharedLibrary:
    """The C functions of a library, and its manifest, as JSON and as `contents`."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.name = _name(file)
        self._c = self._open()
        self._function("last_error").restype = ctypes.c_char_p
        self._function("manifest").restype = ctypes.c_char_p
        self.contents = Manifest(self._function("manifest")())
        self.manifest = self.contents.content

    @property
    def torch_deferred(self) -> ctypes.c_int | None:
        """A switch of the library: whether its torch adapter, when opened, defines no operators.

        None for a library of an opforge before there was one.
        """
        try:
            return ctypes.c_int.in_dll(self._c, f"{self.name}_torch_deferred")
        except ValueError:
            return None

    def load(self, device: int = 0) -> None:
        """Load every kernel for a device, so that no call has to."""
        self.call(f"{self.name}_load", [ctypes.c_int(device)])

    def unload(self, device: int = 0) -> None:
        """Free what the library holds on a device; no call may be under way."""
        self.call(f"{self.name}_unload", [ctypes.c_int(device)])

    def call(self, function: str, arguments: list[Any]) -> None:
        """Call a C function by name, and raise if it fails."""
        status = getattr(self._c, function)(*arguments)
        if status != 0:
            from ...errors import NativeCallFailed

            error = NativeCallFailed(self._function("last_error")().decode())
            error.status = STATUS_NAMES[status]
            raise error

    def _open(self) -> ctypes.CDLL:
        from_file = str(self.file.resolve())
        try:
            c = ctypes.CDLL(from_file)
            version = getattr(c, f"{self.name}_abi_version")()
        except (OSError, AttributeError) as error:
            from ...errors import NotALibrary

            fix = "give the folder that `opforge build -o` wrote, or its lib/libNAME.so"
            raise NotALibrary(f"{self.file} is not an opforge library: {error}", fix=fix) from error
        if version != ABI:
            from ...errors import NotALibrary

            what = f"{self.file} has ABI {version}, and this opforge has ABI {ABI}"
            raise NotALibrary(what, fix=f"build it again: {rebuild(self.file)}")
        return c

    def _function(self, ending: str) -> Any:
        return getattr(self._c, f"{self.name}_{ending}")
