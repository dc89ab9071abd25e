"""`opforge wheel`: what a build wrote, as a wheel or for HuggingFace's kernels.

And `opforge verify` of a wheel, or of what it installed: it is packed again and compared.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib
import io
import keyword
import re
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import opforge

from ..commands.verify import Verified, package_at, verify
from ..errors import BadOption, NotALibrary, OutputNotWritable
from ..native.artifacts.hashes import sums_path
from ..notebook import counted, size
from ..serving import manifest as manifests
from ..versions import OLDEST_TORCH
from .package import (
    BuiltLibrary,
    Platform,
    callable_ops,
    hub_files,
    listed_files,
    no_gradient,
    package_files,
    platform_of,
    read_built,
    result_classes,
)

_TORCH = ("Provides-Extra: torch", f'Requires-Dist: torch>={OLDEST_TORCH}; extra == "torch"')
# The first whose `jax.ffi` the module uses.
_JAX = ("Provides-Extra: jax", 'Requires-Dist: jax>=0.5; extra == "jax"')
# Packages that a wheel of that name would overwrite or hide.
_TAKEN = {
    "jax", "jaxlib", "kernels", "numpy", "opforge", "pip", "setuptools", "torch", "triton",
    "tvm-ffi", "wheel",
}  # fmt: skip


def run(
    path: str, output: str, version: str, name: str | None = None, layout: str = "wheel"
) -> str:
    """Write the wheel of a built library or of served kernels, and report it."""
    check_extra()
    _check_version(version)
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
        return _write_for_hub(read_built(folder), Path(output), version)
    wheel = pack(folder, version, name)
    content = archive_bytes(wheel.files())
    file = Path(output, wheel.file_name)
    _write(file, content)
    notes = [f"note: {note}" for note in wheel.notes]
    return "\n".join([*notes, f"{file}: {wheel.about}, {size(len(content))}"])


@dataclass(frozen=True)
class Wheel:
    """A wheel that is not yet a file; `package` has its files below its name."""

    name: str
    version: str
    platform: str
    summary: str
    package: Mapping[str, bytes]
    # Lines of METADATA.
    extras: tuple[str, ...] = ()
    # Which Python it is for, and with which ABI.
    python: str = "py3-none"
    # For people.
    about: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def tag(self) -> str:
        return f"{self.python}-{self.platform}"

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}-{self.tag}.whl"

    def files(self) -> dict[str, bytes]:
        """The files of the package, and then `METADATA`, `WHEEL` and `RECORD`."""
        info = f"{self.name}-{self.version}.dist-info"
        files = {f"{self.name}/{name}": text for name, text in sorted(self.package.items())}
        files[f"{info}/METADATA"] = _lines(
            "Metadata-Version: 2.1",
            f"Name: {self.name}",
            f"Version: {self.version}",
            f"Summary: {self.summary}",
            "Requires-Python: >=3.10",
            *self.extras,
        )
        files[f"{info}/WHEEL"] = _lines(
            "Wheel-Version: 1.0",
            f"Generator: opforge {opforge.__version__}",
            "Root-Is-Purelib: false",
            f"Tag: {self.tag}",
        )
        rows = [f"{name},{_digest(content)},{len(content)}" for name, content in files.items()]
        files[f"{info}/RECORD"] = _lines(*rows, f"{info}/RECORD,,")
        return files


def is_served(path: Path) -> bool:
    return (path / manifests.NAME).is_file()


def pack(folder: Path, version: str, name: str | None = None) -> Wheel:
    """The wheel of what was built into a folder, or of what a wheel has installed there."""
    if is_served(folder):
        return _pack_served(folder, version, package_name(folder, name))
    library = read_built(folder)
    check_package_name(library.name, fix="build the library with another --name")
    return Wheel(
        name=library.name,
        version=version,
        platform=library.platform.tag,
        summary=f"Native operators for {library.built_for}, built with opforge",
        package={**library.files, **package_files(library, version)},
        extras=_TORCH + (_JAX if "jax.py" in library.files else ()),
        about=_content(library),
        notes=_notes(library),
    )


def _pack_served(folder: Path, version: str, name: str) -> Wheel:
    manifest = manifests.read(folder)
    files = {f"kernels/{path}": text for path, text in listed_files(folder, "served").items()}
    module = Path(__file__).with_name("shipped_kernels.py").read_bytes()
    platform = platform_of((folder / f"{manifests.EXTENSION}.abi3.so",))
    archs = ", ".join(manifest.archs)
    return Wheel(
        name=name,
        version=version,
        platform=platform.tag,
        summary=f"Triton kernels for {archs}, served by opforge",
        package={"__init__.py": module, "py.typed": b"", **files},
        # The extension is a module for CPython 3.10 and later.
        python="cp310-abi3",
        about=f"{counted(len(manifest.functions), 'kernel')} for {archs}",
        notes=_platform_notes(platform),
    )


def _write_for_hub(library: BuiltLibrary, output: Path, version: str) -> str:
    files = hub_files(library, version)
    for path, content in files.items():
        _write(output / path, content)
    notes = _notes(library)
    others = [arch for arch in library.archs if not arch.startswith("sm_")]
    if others:
        notes.append(f"it is not loaded on {', '.join(others)}: this layout is for CUDA")
    nvidias = tuple(arch for arch in library.archs if arch not in others)
    about = _content(dataclasses.replace(library, archs=nvidias))
    builds = dict.fromkeys(output.joinpath(*Path(path).parts[:2]) for path in files)
    return "\n".join([*(f"note: {n}" for n in notes), *(f"{b}: {about}" for b in builds)])


def _content(library: BuiltLibrary) -> str:
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
    return [*library.notes, *reach, *without, *plain, *_platform_notes(library.platform)]


def _platform_notes(platform: Platform) -> list[str]:
    return [f"not a manylinux wheel: {note}" for note in platform.notes]


def check_extra() -> None:
    """Raise `BadOption` without the packages that packing a wheel needs."""
    try:
        importlib.import_module("auditwheel.policy")
        importlib.import_module("packaging.version")
    except ImportError as error:
        raise BadOption(
            "wheels need auditwheel and packaging",
            found=str(error),
            fix="pip install 'opforge[wheel]'",
        ) from None


def _check_version(version: str) -> None:
    """Raise `BadOption` for what is not a version as indexes and file names have it."""
    from packaging.version import InvalidVersion, Version

    try:
        is_version = str(Version(version)) == version
    except InvalidVersion:
        is_version = False
    if not is_version:
        raise BadOption(
            f"--version {version}: not the version of a Python package",
            fix="give one as 1.2.0, 1.2.0rc1 or 1.2.0+cu128",
        )


def check_package_name(name: str, *, fix: str, origin: str = "") -> None:
    """Raise `BadOption` for a name that Python cannot import, or that imports another.

    `origin` says where a name comes from that nobody gave.
    """
    from packaging.utils import canonicalize_name

    if canonicalize_name(name) in _TAKEN:
        why = "it would overwrite or hide the package of that name"
    elif name in sys.stdlib_module_names:
        why = "it would hide a module of Python's standard library"
    elif keyword.iskeyword(name) or not (name.isidentifier() and name.isascii()):
        why = "a name has letters, digits and underscores, a letter first, and is no keyword"
    else:
        return
    raise BadOption(f"a Python package cannot be named {name}{origin}: {why}", fix=fix)


def package_name(folder: Path, name: str | None) -> str:
    """Of served kernels: the name that was asked for, or the folder's."""
    origin = "" if name else ", after its folder"
    name = name or folder.resolve().name.replace("-", "_")
    check_package_name(name, fix="choose another one: --name NAME", origin=origin)
    return name


def archive_bytes(files: Mapping[str, bytes]) -> bytes:
    """The same files give the same bytes: those of `wheel` have the time of day."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            archive.writestr(entry, content)
    return stream.getvalue()


def _write(file: Path, content: bytes) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    except OSError as error:
        raise OutputNotWritable(
            f"{file} cannot be written: {error.strerror}", fix="choose another folder with -o"
        ) from error


def _lines(*lines: str) -> bytes:
    return "\n".join([*lines, ""]).encode()


def _digest(content: bytes) -> str:
    """As RECORD has it: `sha256=47DEQpj8HBSa...`."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


_PACKED_BY = re.compile(rb"^Generator: opforge (\S+)$", re.MULTILINE)
_VERSION = re.compile(rb"^__version__ = '([^'\n]+)'$", re.MULTILINE)
# Of the layout for HuggingFace's kernels; it is the user's.
_NOT_PACKED = "metadata.json"
_RECORD = ".dist-info/RECORD"
_HERE = opforge.__version__
_GIVE_WHEEL = "give a wheel that `opforge wheel` wrote"


def verify_wheel(path: str, *, manifest_only: bool, **given: Any) -> list[Verified]:
    """Its library or kernels against their SHA256SUMS, and then all against what opforge packs.

    RECORD is anybody's to write.
    """
    if not manifest_only:
        raise NotALibrary(
            f"{path} cannot be built again: a wheel has no sources",
            fix="verify the folder that it was packed from, or only its files: "
            "opforge verify --manifest-only",
        )
    check_extra()
    with tempfile.TemporaryDirectory(prefix="opforge-verify-") as folder:
        files = _unpacked(path, folder)
        roots = {place.parents[2] for place in Path(folder).glob(f"**/{sums_path('*')}")}
        records = [file for file in files if file.endswith(_RECORD)]
        if len(roots) != 1 or len(records) != 1:
            what = f"{path} holds {len(roots)} opforge builds and {len(records)} files RECORD"
            raise NotALibrary(f"{what}, expected one of each", fix=_GIVE_WHEEL)
        (root,), (record,) = roots, records
        shown = f"{path}/{root.relative_to(folder).as_posix()}"
        built = verify(str(root), manifest_only=True, shown=shown, **given)
        if not all(library.ok for library in built):
            return built
        # The wheel's file may have been renamed.
        name, _, version = record.removesuffix(_RECORD).partition("-")
        packed = pack(root, version, name if is_served(root) else None).files()
        generator = files.get(f"{name}-{version}.dist-info/WHEEL", b"")
        return [_compared(Path(path).name, files, packed, generator), *built]


def verify_package(path: str, **given: Any) -> list[Verified]:
    """The same of what a wheel has installed."""
    check_extra()
    package = package_at(path)
    assert package is not None
    built = verify(path, **given)
    if not all(library.ok for library in built):
        return built
    name = package.name
    files = {
        file.relative_to(package).as_posix(): file.read_bytes()
        for file in sorted(package.rglob("*"))
        if file.is_file()
    }
    files.pop(_NOT_PACKED, None)
    version = _VERSION.search(files.get("__init__.py", b""))
    root = package if (package / "share").exists() else package / "kernels"
    wheel = pack(
        root, "0.0.0" if version is None else version[1].decode(), name if is_served(root) else None
    )
    generators = [file.read_bytes() for file in package.parent.glob(f"{name}-*.dist-info/WHEEL")]
    # Those of the package, without METADATA, WHEEL and RECORD.
    compared = _compared(f"the package {name}", files, wheel.package, b"".join(generators))
    return [compared, *built]


def _compared(
    what: str, files: Mapping[str, bytes], packed: Mapping[str, bytes], generator: bytes
) -> Verified:
    different = {
        file: f"is not what opforge {_HERE} packs with these files"
        for file, content in files.items()
        if packed.get(file) != content
    }
    for file in [file for file in different if "__pycache__/" in file]:
        del different[file]
        folder, _, _ = file.rpartition("/")
        different[folder] = "has bytecode, which is loaded in place of the source: remove it"
    different |= dict.fromkeys(sorted(packed.keys() - files.keys()), "is gone")
    by = _PACKED_BY.search(generator)
    reasons: tuple[str, ...] = ()
    if different and by and by[1].decode() != _HERE:
        reasons = (f"opforge {by[1].decode()} packed it, and this is opforge {_HERE}",)
    against = f"what opforge {_HERE} packs"
    return Verified(what, len(files), False, different, reasons, against=against)


def _unpacked(path: str, folder: str) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
            files = {name: wheel.read(name) for name in names}
            wheel.extractall(folder)
    # zipfile raises RuntimeError for a file that says it is encrypted.
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise NotALibrary(f"{path} is not a wheel, or damaged: {error}", fix=_GIVE_WHEEL) from None
    # Of two with one name pip takes the last, others may take the first.
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise NotALibrary(f"{path} has several files {', '.join(twice)}", fix=_GIVE_WHEEL)
    return files
