"""A built library as a shared object: found, opened, and compared with this opforge.

A loaded library's first call waits for this module, so it imports little.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ..artifacts.hashes import VerifiedFiles, fault
from ..ir.abi import ABI, MANIFEST_FORMAT, STATUS_NAMES
from .manifest_reader import Manifest, as_asked

# What tells a file from one that was put in its place: device, inode, size, time.
FileStamp = tuple[int, int, int, int]

# By file, as it was when this process opened it, which it keeps.
_opened: dict[Path, FileStamp] = {}


def find_library(path: Path) -> Path:
    """The library that is meant by its file, its torch adapter, or the folder of a build."""
    if not path.exists():
        from ...errors import NotALibrary

        command = rebuild(path) if path.suffix == ".so" else f"opforge build SOURCE.py -o {path}"
        fix = f"build it: {command}"
        if not {"site-packages", "dist-packages"}.isdisjoint(path.absolute().parts):
            fix = "install its wheel, which `opforge build SOURCE.py --wheel` writes"
        raise NotALibrary(f"there is no {path}", fix=fix)
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
    """The command that builds a library again: `opforge build ops.py --arch sm_80 -o dist`.

    For one that a wheel has installed, it builds a wheel and installs that.
    """
    folder = file.parent.parent if file.parent.name == "lib" else file.parent
    is_installed = (folder / "_library.py").is_file()
    # The manifest names images: sm_90a is what is made for sm_90.
    asked = "".join(f" --arch {as_asked(arch)}" for arch in archs)
    asked += " --wheel" if is_installed else " --torch" if torch else ""
    command = f"opforge build {source or 'SOURCE.py'}{asked} --name {library_name(file)} -o"
    if not is_installed:
        return f"{command} {folder}"
    return f"{command} dist && pip install --force-reinstall dist/{library_name(file)}-*.whl"


def shortened(names: Iterable[str], most: int = 6) -> str:
    """Names for a `repr`: `add, matmul, pick and 12 more`."""
    shown = list(names)
    rest = len(shown) - most
    return ", ".join(shown) if rest <= 0 else f"{', '.join(shown[:most])} and {rest} more"


def refuse_other_format(manifest: Manifest, what: str, fix: Callable[[], str]) -> None:
    """Raise `StaleLibrary`; `fix` is asked only then."""
    if manifest.format != MANIFEST_FORMAT:
        from ...errors import StaleLibrary

        said = f"{what} has format {manifest.format}, and this opforge reads {MANIFEST_FORMAT}"
        raise StaleLibrary(said, fix=fix())


def _is_named_so(file: Path) -> bool:
    return file.name.startswith("lib") and file.name.endswith(".so")


def _without_adapter(file: Path) -> Path:
    """The library that a torch adapter goes with; any other file is its own."""
    base = file.with_name(f"{file.name.removesuffix('_torch.so')}.so")
    return base if file.name.endswith("_torch.so") and base.is_file() else file


def library_name(file: Path) -> str:
    return file.name.partition(".so")[0].removeprefix("lib")


def refuse_damaged(file: Path, library: str) -> None:
    """Raise `NotALibrary` for a file of a library that is cut short, or not listed by its build."""
    real = file.resolve()
    root = real.parent.parent if real.parent.name == "lib" else real.parent
    why = fault(real, root, library)
    if why:
        from ...errors import NotALibrary

        fix = f"copy it again, or build it: {rebuild(file)}"
        if (root / "_library.py").is_file():
            fix = f"install its wheel again: pip install --force-reinstall {library}"
        raise NotALibrary(f"{file} is not opened, because it is damaged: {why}", fix=fix)


def _stamp_of(file: Path) -> FileStamp:
    found = file.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def refuse_changed(file: Path) -> None:
    """Raise `StaleLibrary` if a process that has opened a file would get what it had before."""
    before = _opened.get(file.resolve())
    if before is None or not file.exists() or _stamp_of(file) == before:
        return
    from ...errors import StaleLibrary

    raise StaleLibrary(
        f"{file} was rebuilt after this process loaded it; a process cannot hold both",
        fix="start a new process",
    )


class SharedLibrary:
    """The C functions of a library, and its manifest, as JSON and as `contents`.

    Of `verified` files, what was compared with its hash is opened.
    """

    def __init__(self, file: Path, verified: VerifiedFiles | None = None) -> None:
        self.file, self._verified = file, verified
        self.name = library_name(file)
        self._private: Path | None = None
        refuse_changed(file)
        stamp = _stamp_of(file)
        with self.checked(file) as self._place:
            try:
                self._c = ctypes.CDLL(self._place)
            except OSError as error:
                raise self._other(error) from error
        _opened.setdefault(file.resolve(), stamp)
        try:
            self.contents = self._read_manifest()
            self.manifest = self.contents.content
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Close a library that cannot be used, so that a better one can be opened in its place.

        Nothing of it may have been called or kept.
        """
        import _ctypes

        _ctypes.dlclose(self._c._handle)  # noqa: SLF001 - ctypes has no other way to close
        try:
            ctypes.CDLL(self._place, mode=os.RTLD_NOLOAD)
        except OSError:
            _opened.pop(self.file.resolve(), None)

    @contextlib.contextmanager
    def checked(self, file: Path) -> Iterator[str]:
        """What to open for the library or its adapter, which is checked before."""
        if self._verified is None:
            refuse_damaged(file, self.name)
            yield str(file.resolve())
            return
        content = self._verified.read(file.resolve())
        # A copy that nobody else can write to. The adapter looks for its library beside itself.
        if self._private is None:
            self._private = Path(tempfile.mkdtemp(prefix="opforge-"))
        else:
            self._private.mkdir(mode=0o700)
        try:
            copy = self._private / file.name
            copy.write_bytes(content)
            yield str(copy)
        finally:
            shutil.rmtree(self._private)

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

    def _read_manifest(self) -> Manifest:
        try:
            version = self._function("abi_version")()
            if version != ABI:
                from ...errors import NotALibrary

                what = f"{self.file} has ABI {version}, and this opforge has ABI {ABI}"
                raise NotALibrary(what, fix=f"build it again: {rebuild(self.file)}")
            for text in ("last_error", "manifest"):
                self._function(text).restype = ctypes.c_char_p
        except AttributeError as error:
            raise self._other(error) from error
        manifest = Manifest(self._function("manifest")() or b"", str(self.file))
        refuse_other_format(
            manifest,
            f"the manifest in {self.file}",
            lambda: f"build it again: {rebuild(self.file, archs=manifest.archs)}",
        )
        return manifest

    def _other(self, error: Exception) -> Exception:
        from ...errors import NotALibrary

        fix = "give the folder that `opforge build -o` wrote, or its lib/libNAME.so"
        return NotALibrary(f"{self.file} is not an opforge library: {error}", fix=fix)

    def _function(self, ending: str) -> Any:
        return getattr(self._c, f"{self.name}_{ending}")
