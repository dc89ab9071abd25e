"""A folder of served kernels, as `opforge build launches.json` writes it, read for a wheel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..native.artifacts.hashes import VerifiedFiles, sums_path
from ..serving import manifest as manifests
from ..serving.served_folder import extension_file
from .platform_tag import Platform, platform_of


@dataclass(frozen=True)
class ServedKernels:
    """The kernels, and the files that go into a wheel, by their paths in the folder."""

    name: str
    archs: tuple[str, ...]
    kernels: int
    platform: Platform
    files: dict[str, bytes]


def is_served(path: Path) -> bool:
    return (path / manifests.NAME).is_file()


def read_served(folder: Path, name: str) -> ServedKernels:
    """Raise `Untrusted` for a folder that is not as it was built."""
    manifest = manifests.read(folder)
    extension = extension_file(folder)
    verified = VerifiedFiles(folder, "served")
    images = {
        image.file
        for kernel in manifest.kernels
        for instance in kernel.instances
        for variant in instance.variants
        for image in variant.images
    }
    # The hashes, and their signature if there is one.
    sums = [str(path.relative_to(folder)) for path in folder.glob(f"{sums_path('served')}*")]
    files = {
        file: verified.read(folder / file) for file in (manifests.NAME, extension.name, *images)
    }
    files |= {file: (folder / file).read_bytes() for file in sums}
    platform = platform_of((extension,))
    archs = tuple(map(str, manifest.archs))
    return ServedKernels(name, archs, len(manifest.kernels), platform, files)


def served_files(served: ServedKernels) -> dict[str, bytes]:
    """The files of the package, by their paths in it."""
    package = Path(__file__).with_name("shipped_kernels.py").read_bytes()
    folder = {f"kernels/{name}": content for name, content in served.files.items()}
    return {"__init__.py": package, "py.typed": b"", **folder}
