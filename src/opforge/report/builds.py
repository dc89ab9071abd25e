"""Folders of `opforge build`, read for a report; they may be for any machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..errors import NotALibrary, NotServable
from ..native.ir.case_text import conditions, describe
from ..native.ir.cases import Case, Launch
from ..native.ir.program import BuiltKernel, read_kernels
from ..native.kernels import objects
from ..native.library.manifest_reader import Manifest, ManifestOp, reading
from ..native.library.shared_library import refuse_other_format
from ..recording.constants import show
from ..serving import manifest as served_manifests
from ..serving.manifest import DESCRIPTOR, ServedImage, ServedInstance, ServedKernel, ServedVariant
from .model import (
    LIBRARY,
    SERVED,
    Build,
    ReportedCase,
    ReportedImage,
    ReportedOperator,
    ReportedVariant,
)

_MANIFESTS = "share/*/manifest.json"
_FOLDER = "give the folder that `opforge build -o` wrote"


def is_built(path: Path) -> bool:
    """A folder, or the binary of one, which stands for it."""
    return path.is_dir() or path.suffix == ".so"


def read_builds(path: Path) -> tuple[Build, ...]:
    """Every library in a folder, or its served kernels; or what a binary is part of."""
    if not path.is_dir():
        return (_read_binary(path.resolve()),)
    served = _served_in(path)
    if served is not None:
        return (read_served(served, path.resolve().name),)
    manifests = sorted(path.glob(_MANIFESTS))
    if not manifests:
        files = ", ".join(sorted(file.name for file in path.iterdir())[:6])
        raise NotALibrary(
            f"{path} is neither a library nor a folder of served kernels",
            found=f"no {_MANIFESTS} and no manifest.json, but {files or 'nothing'}",
            fix=_FOLDER,
        )
    return tuple(map(read_library, manifests))


def _read_binary(binary: Path) -> Build:
    """Of a library, of the adapter for torch beside it, or of served kernels."""
    if (binary.parent / served_manifests.NAME).is_file():
        return read_served(binary.parent, binary.parent.name)
    name = binary.stem.removeprefix("lib")
    folders = [binary.parents[1] / "share" / n for n in (name, name.removesuffix("_torch"))]
    for folder in folders:
        if (folder / "manifest.json").is_file():
            return read_library(folder / "manifest.json")
    raise NotALibrary(
        f"{binary} is not part of a build", found=f"no {folders[0] / 'manifest.json'}", fix=_FOLDER
    )


def read_library(file: Path) -> Build:
    """The build of a manifest, `dist/share/NAME/manifest.json`; the library is not opened."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise NotALibrary(
            f"{file} cannot be read: {error.strerror}", fix="build the library again"
        ) from None
    manifest = Manifest(text, str(file))
    refuse_other_format(manifest, str(file), lambda: "build the library again with this opforge")
    content = manifest.content
    with reading(str(file)):
        kernels = read_kernels(content)
        operators = tuple(map(_operator, manifest.ops))
        launches = [(key, op.name) for op in manifest.ops for key in _launched(op)]
    binary = file.parents[2] / "lib" / f"lib{content['name']}.so"
    # Images that are the same stand in a library once.
    distinct = {image.sha256: image.bytes for kernel in kernels for image in kernel.images}
    return Build(
        kind=LIBRARY,
        name=content["name"],
        archs=manifest.archs,
        bytes=binary.stat().st_size if binary.is_file() else sum(distinct.values()),
        versions=content.get("versions", {}),
        notes=tuple(content.get("notes", ())),
        operators=operators,
        variants=tuple(_library_variant(kernel, launches) for kernel in kernels),
    )


def _operator(op: ManifestOp) -> ReportedOperator:
    return ReportedOperator(
        name=op.name,
        torch_name=op.torch_name,
        schema=op.schema,
        location=op.location,
        doc=op.op.doc,
        covers="\n\n".join(op.covers),
        cases=tuple(_case(case, op) for case in op.cases),
    )


def _case(case: Case, op: ManifestOp) -> ReportedCase:
    served_by = op.op.served_by
    owner = f"{served_by[case.implementation].name}: " if len(served_by) > 1 else ""
    refused = [path for path in case.paths if path.refused]
    texts = {path: f"where {conditions(path) or 'always'}: {path.why}" for path in refused}
    return ReportedCase(
        case=owner + describe(case, op.op.params),
        paths=len(case.paths) - len(refused),
        # A path whose line is known is one that the body itself refuses.
        uncovered=tuple(text for path, text in texts.items() if not path.refused_at),
        raises=tuple(text for path, text in texts.items() if path.refused_at),
    )


def _launched(op: ManifestOp) -> Iterator[str]:
    """The keys of the kernels that an operator launches."""
    for case in op.cases:
        for path in case.paths:
            for step in path.steps:
                if isinstance(step, Launch):
                    yield from (variant.kernel for variant in step.variants)


def _library_variant(built: BuiltKernel, launches: list[tuple[str, str]]) -> ReportedVariant:
    kernel = built.kernel
    module, _, qualified = kernel.qualified_name.rpartition(":")
    return ReportedVariant(
        kernel=f"{module}:{qualified}" if module else kernel.name,
        location=kernel.location,
        types=tuple(f"{t}:16" if i in kernel.divisible else t for i, t in enumerate(kernel.types)),
        constants=dict(kernel.constants),
        options=dict(kernel.options),
        images=tuple(
            ReportedImage(i.arch, i.registers, i.spills, i.shared, i.bytes, i.num_warps)
            for i in built.images
        ),
        operators=tuple(dict.fromkeys(name for key, name in launches if key == kernel.key)),
    )


def _served_in(folder: Path) -> Path | None:
    """The folder of served kernels that a folder is, or has as the package of a wheel."""
    places = [folder, *([folder / "kernels"] if (folder / "__init__.py").is_file() else [])]
    return next((place for place in places if (place / served_manifests.NAME).is_file()), None)


def read_served(folder: Path, name: str) -> Build:
    """The build of a folder of served kernels, under a name."""
    manifest = served_manifests.read(folder)
    archs = tuple(map(str, manifest.archs))
    listed = [
        (kernel, instance, variant)
        for kernel in manifest.kernels
        for instance in kernel.instances
        for variant in instance.variants
    ]
    # Instances may share images.
    sizes = {image.file: image.size for _, _, variant in listed for image in variant.images}
    extensions = [file.stat().st_size for file in folder.glob("*.abi3.so")]
    return Build(
        kind=SERVED,
        name=name,
        archs=archs,
        bytes=sum(sizes.values()) + sum(extensions),
        versions={"triton": manifest.triton, **dict(manifest.settings)},
        notes=(),
        operators=(),
        variants=tuple(_served_variant(folder, archs, *parts) for parts in listed),
    )


def _served_variant(
    folder: Path,
    archs: tuple[str, ...],
    kernel: ServedKernel,
    instance: ServedInstance,
    variant: ServedVariant,
) -> ReportedVariant:
    images = tuple(_served_image(folder, image) for image in variant.images)
    built = {image.arch for image in images}
    return ReportedVariant(
        kernel=f"{kernel.module}:{kernel.name}",
        location=kernel.location,
        types=tuple(map(_type, instance.kinds, variant.types)),
        constants={name: show(value) for name, value in instance.constants},
        options={name: show(value) for name, value in instance.options},
        images=images,
        lacks=tuple(arch for arch in archs if arch not in built),
    )


def _type(kind: str, form: str) -> str:
    """`*fp32` and `p16` -> `*fp32:16`; a number has its type in the variant."""
    if form == DESCRIPTOR:
        return kind
    if form.startswith("p"):
        return f"{kind}:16" if form == "p16" else kind
    return form


def _served_image(folder: Path, image: ServedImage) -> ReportedImage:
    try:
        content = (folder / image.file).read_bytes()
    except OSError as error:
        raise NotServable(
            f"{folder} lacks {image.file}: {error.strerror}",
            fix="build it again with `opforge build launches.json`",
        ) from None
    registers, spills = objects.usage(content, image.symbol, image.arch)
    return ReportedImage(
        str(image.arch), registers, spills, image.shared, image.size, image.num_warps
    )
