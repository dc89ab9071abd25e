"""A folder of served kernels, read for a report."""

from __future__ import annotations

from pathlib import Path

from ..errors import NotServable
from ..native.kernels import objects
from ..recording.constants import show
from ..serving import manifest as manifests
from ..serving.kinds import DESCRIPTOR
from ..serving.manifest import Manifest, ServedImage, ServedInstance, ServedKernel, ServedVariant
from .model import SERVED, Build, ReportedImage, ReportedVariant


def served_in(folder: Path) -> Path | None:
    """The folder of served kernels that a folder is, or has as the package of a wheel."""
    places = [folder, *([folder / "kernels"] if (folder / "__init__.py").is_file() else [])]
    return next((place for place in places if (place / manifests.NAME).is_file()), None)


def read_served(folder: Path, name: str) -> Build:
    """The build of a folder, under a name; raises `NotServable`."""
    manifest = manifests.read(folder)
    variants = tuple(
        _variant(folder, manifest, kernel, instance, variant)
        for kernel in manifest.kernels
        for instance in kernel.instances
        for variant in instance.variants
    )
    return Build(
        kind=SERVED,
        name=name,
        archs=tuple(map(str, manifest.archs)),
        bytes=sum(_sizes(manifest).values()) + _extension_size(folder),
        versions={"triton": manifest.triton, **dict(manifest.settings)},
        notes=(),
        operators=(),
        variants=variants,
    )


def _variant(
    folder: Path,
    manifest: Manifest,
    kernel: ServedKernel,
    instance: ServedInstance,
    variant: ServedVariant,
) -> ReportedVariant:
    built = {image.arch for image in variant.images}
    return ReportedVariant(
        kernel=f"{kernel.module}:{kernel.name}",
        location=kernel.location,
        types=tuple(map(_type, instance.kinds, variant.types)),
        constants={name: show(value) for name, value in instance.constants},
        options={name: show(value) for name, value in instance.options},
        images=tuple(_image(folder, image) for image in variant.images),
        lacks=tuple(str(arch) for arch in manifest.archs if arch not in built),
    )


def _type(kind: str, given: str) -> str:
    """`*fp32` and `p16` -> `*fp32:16`; a number has its type in the variant."""
    if given == DESCRIPTOR:
        return kind
    if given.startswith("p"):
        return f"{kind}:16" if given == "p16" else kind
    return given


def _image(folder: Path, image: ServedImage) -> ReportedImage:
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


def _sizes(manifest: Manifest) -> dict[str, int]:
    """Instances may share images."""
    return {
        image.file: image.size
        for kernel in manifest.kernels
        for instance in kernel.instances
        for variant in instance.variants
        for image in variant.images
    }


def _extension_size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.abi3.so"))
