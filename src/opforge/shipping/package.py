"""What a build wrote, read for a wheel, and the wheel's Python package.

The package has functions with types and docstrings, from the operators:

def silu(x: Tensor, scale: float = 1.0) -> Tensor:
    return _op_silu(x, scale)

The library is not opened: it may be for a different machine.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import keyword
import math
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import opforge

from ..errors import BadOption, NotALibrary, Untrusted
from ..native.artifacts.hashes import SUFFIX, read_sums, sums_path
from ..native.codegen.bindings import unadapted
from ..native.codegen.text import with_constants
from ..native.ir.cases import chosen
from ..native.ir.interface import Op, SchemaArgument
from ..native.ir.program import KERNEL
from ..native.library.manifest_reader import Manifest, ManifestOp, as_asked
from ..native.library.shared_library import (
    find_library,
    library_name,
    rebuild,
    refuse_other_format,
)
from ..versions import OLDEST_TORCH

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


_TYPES = {
    "Tensor": "Tensor", "int": "int", "SymInt": "int", "float": "float", "bool": "bool",
    "str": "str", "ScalarType": "dtype",
}  # fmt: skip
_HANDED_ON = ("get_cmake_dir", "get_include", "get_library")
# What the module imports, and the types that it writes.
_USED = frozenset({
    "Literal", "NamedTuple", "TYPE_CHECKING", "Tensor", "annotations", "bool", "dtype", "float",
    "int", "str", "tuple",
})  # fmt: skip
_HEAD = """
from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from . import _library
from ._library import get_cmake_dir, get_include, get_library

if TYPE_CHECKING:
    from torch import Tensor, dtype
"""

_OPFORGE = Path(opforge.__file__).parent
# Parts of it, for fakes and gradients: all that `shipped_rules` imports, and what these import.
_COPIED = (
    "_compat/transforms", "errors", "records", "loading/rules",
    "native/ir/cases", "native/ir/dtypes", "native/ir/expr",
    "native/ir/interface", "native/ir/places", "native/ir/wording",
    "native/library/manifest_reader", "shipping/shipped_rules",
)  # fmt: skip
_ABOUT = f'"""Parts of opforge {opforge.__version__}: fakes and gradients from a manifest."""\n'


def package_files(library: BuiltLibrary, version: str) -> dict[str, bytes]:
    """The package's Python files, by name."""
    texts = {
        "__init__.py": _module(library, version),
        "_library.py": _loader(library),
        "py.typed": "",
    }
    return {name: text.encode() for name, text in texts.items()} | copied_files()


def callable_ops(library: BuiltLibrary) -> list[Op]:
    """The operators that are functions of the package; torch.ops has them all."""
    # A module of the package would take the place of a function.
    modules = {file.removesuffix(".py") for file in library.files if "/" not in file}
    free = [op for op in library.ops if op.name not in modules]
    return [op for op in free if _is_free(op.name) and _is_writable(op)]


def result_classes(library: BuiltLibrary) -> dict[str, str]:
    """By operator, the class that its function returns, with the fields that the source's has."""
    ops = callable_ops(library)
    functions = {op.name for op in ops}
    contents: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    classes: dict[str, str] = {}
    for op in ops:
        if not op.result or len(op.result) != len(op.returns) + 1:
            continue
        name, *fields = op.result
        fits = all(_is_name(field) and field[0] != "_" for field in fields)
        if _is_free(name) and name not in functions and fits:
            content = (op.result, op.returns)
            if contents.setdefault(name, content) == content:
                classes[op.name] = name
    return classes


def _class(op: Op) -> str:
    name, *fields = op.result
    pairs = zip(fields, op.returns, strict=True)
    return "\n".join([f"class {name}(NamedTuple):", *(f"    {n}: {_type(t)}" for n, t in pairs)])


def _is_free(name: str) -> bool:
    taken = name in _HANDED_ON or name in _USED
    return _is_name(name) and not taken and name[0] != "_"


def _is_writable(op: Op) -> bool:
    """Whether a Python function can have its arguments: schemas allow more."""
    names = [argument.name for argument in op.arguments]
    if f"_op_{op.name}" in names or not all(map(_is_name, names)):
        return False
    try:
        ast.parse(f"{_signature(op)} ...")
    except SyntaxError:
        return False
    return True


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def _module(library: BuiltLibrary, version: str) -> str:
    ops, results = callable_ops(library), result_classes(library)
    names = sorted({*_HANDED_ON, *(op.name for op in ops), *results.values()})
    # Several operators may return one class.
    classes = {results[op.name]: _class(op) for op in ops if op.name in results}
    return "\n".join(
        [
            f'"""The operators of lib{library.name}.so, for {library.built_for}."""',
            _HEAD,
            f"__version__ = {version!r}\n__all__ = {names!r}\n",
            *(f"_op_{op.name} = _library.operator({op.torch_name!r})" for op in ops),
            *(f"\n\n{text}" for text in classes.values()),
            *(_function(op, results.get(op.name, "")) for op in ops),
            "",
        ]
    )


def _loader(library: BuiltLibrary) -> str:
    text = Path(__file__).with_name("shipped.py").read_text(encoding="utf-8")
    return with_constants(
        text,
        LIBRARY=library.name,
        MACHINE=library.platform.machine,
        OPERATORS=" ".join(op.torch_name for op in library.ops),
        DIFFERENTIABLE=" ".join(
            op.torch_name for op in library.ops if not no_gradient(op, library.ops)
        ),
    )


def _function(op: Op, result: str) -> str:
    passed = [f"{a.name}={a.name}" if a.keyword_only else a.name for a in op.arguments]
    call = f"_op_{op.name}({', '.join(passed)})"
    returned = f"    return {result}(*{call})" if result else f"    return {call}"
    return "\n".join(["", "", _signature(op, result), _docstring(op), returned])


def _signature(op: Op, result: str = "") -> str:
    parts: list[str] = []
    for argument in op.arguments:
        if argument.keyword_only and "*" not in parts:
            parts.append("*")
        default = f" = {_default(argument)}" if argument.default else ""
        parts.append(f"{argument.name}: {_annotation(argument)}{default}")
    returned = [_type(kind) for kind in op.returns]
    several = f"tuple[{', '.join(returned)}]" if returned else "None"
    result = result or (returned[0] if len(returned) == 1 else several)
    return f"def {op.name}({', '.join(parts)}) -> {result}:"


def _annotation(argument: SchemaArgument) -> str:
    """A choice of texts, whole numbers or bools is a Literal of what the library was built for."""
    kind = argument.type.removesuffix("?")
    if argument.values and kind in {"str", "int", "SymInt", "bool"}:
        make = bool if kind == "bool" else lambda value: value
        shown = ["None" if v is None else repr(make(v)) for v in argument.values]
        return f"Literal[{', '.join(shown)}]"
    return _type(argument.type)


def _type(kind: str) -> str:
    plain = _TYPES[kind.removesuffix("?")]
    return f"{plain} | None" if kind.endswith("?") else plain


def _default(argument: SchemaArgument) -> str:
    (value,) = argument.default
    kind = argument.type.removesuffix("?")
    if isinstance(value, tuple):
        return f"_library.dtype({value[1]!r})"
    if kind == "float" and isinstance(value, (int, float)):
        return repr(float(value)) if math.isfinite(value) else f'float("{value}")'
    return repr(bool(value) if kind == "bool" and value is not None else value)


def _docstring(op: Op) -> str:
    told = [inspect.cleandoc(op.doc), f"As a torch operator: {op.schema}"]
    text = "\n\n".join(filter(None, told))
    escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    closing = '\n"""' if "\n" in escaped else '"""'
    return textwrap.indent(f'"""{escaped}{closing}', "    ", lambda line: bool(line.strip()))


def copied_files() -> dict[str, bytes]:
    """Modules below `_opforge`, where they import each other as they do here."""
    copied = {f"_opforge/{name}.py": (_OPFORGE / f"{name}.py").read_bytes() for name in _COPIED}
    folders = {str(parent) for file in copied for parent in Path(file).parents} - {"."}
    return {f"{folder}/__init__.py": _ABOUT.encode() for folder in sorted(folders)} | copied


def no_gradient(op: Op, served: Iterable[Op]) -> str:
    """Why an operator has no gradient where its wheel is installed; empty if it has one."""
    if not op.formula:
        return "the library has no backward for it"
    if "Tensor(" in op.schema:
        return "torch takes none of an operator that writes to its arguments or returns views"
    if any(a.keyword_only and a.type.startswith("Tensor") for a in op.arguments):
        return "torch takes none of an operator with keyword-only tensors"
    missing = {*_called(op.formula)} - {other.torch_name for other in served}
    listed = ", ".join(sorted(missing))
    return f"its backward calls {listed}, which is not in the wheel" if missing else ""


def _called(terms: Iterable[Any]) -> Iterator[str]:
    for term in terms:
        if isinstance(term, tuple):
            if term[0] == "call":
                yield str(term[1])
            yield from _called(term)


# Of one CUDA version the loader takes those of the same major version that are not later. The
# library needs of CUDA only the driver.
_CUDA = ("cu120", "cu130")
# The stable ABI that the adapters use.
_HUB_TORCH = f"torch-stable-abi{OLDEST_TORCH.replace('.', '')}"


def hub_files(library: BuiltLibrary, version: str) -> dict[str, bytes]:
    """What HuggingFace's `kernels` loads: the package once per CUDA version, by path.

    build/torch-stable-abi211-cu130-x86_64-linux/metadata.json
    build/torch-stable-abi211-cu130-x86_64-linux/__init__.py
    """
    metadata = {"metadata.json": _hub_metadata(library, version)}
    files = {**library.files, **package_files(library, version), **metadata}
    builds = [f"build/{_HUB_TORCH}-{cuda}-{library.platform.machine}-linux" for cuda in _CUDA]
    return {f"{build}/{name}": files[name] for build in builds for name in sorted(files)}


def _hub_metadata(library: BuiltLibrary, version: str) -> bytes:
    from packaging.version import Version

    name = library.name.replace("_", "-")
    if not re.fullmatch(r"[a-z][a-z0-9-]*[a-z0-9]", name):
        raise BadOption(
            f"a kernel on the Hub cannot be named {name}",
            fix="build the library with another --name: lowercase letters, digits and dashes, a "
            "letter first",
        )
    manifest = library.files[f"share/{library.name}/manifest.json"]
    digest = hashlib.sha256(manifest).hexdigest()[:12]
    content = {
        "name": name,
        # Of the module, so another one for each build that a process may load.
        "id": f"_{library.name}_cuda_{digest}",
        "version": Version(version).major,
        # The loader wants one; yours is for you to write.
        "license": "unknown",
        "python-depends": [],
        "backend": {"type": "cuda", "archs": _hub_archs(library, manifest)},
    }
    return (json.dumps(content, indent=2) + "\n").encode()


def _hub_archs(library: BuiltLibrary, manifest: bytes) -> list[str]:
    """`sm_90a` -> `9.0a`; with PTX, which later GPUs compile, `9.0+PTX`."""
    archs = [arch.removeprefix("sm_") for arch in library.archs if arch.startswith("sm_")]
    if not archs:
        raise BadOption(
            f"{library.name} is for {library.built_for}, and this layout is for CUDA",
            fix="build it for an NVIDIA GPU, too, or ship a wheel",
        )
    whose = f"lib{library.name}.so"
    kernels = Manifest(manifest, whose).listed("kernels", KERNEL.read)
    images = [image for kernel in kernels for image in kernel.images]
    without_ptx = {image.arch.built_name for image in images if not image.ptx_sha256}
    # The last digit is the minor version, and a letter may follow.
    versions = {arch: re.sub(r"(\d)(\D*)$", r".\1\2", arch) for arch in archs}
    return [
        f"{version}{'+PTX' if images and f'sm_{arch}' not in without_ptx else ''}"
        for arch, version in versions.items()
    ]
