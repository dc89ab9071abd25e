"""A built library as HuggingFace's `kernels` loads it: a folder with one build per CUDA version.

build/torch-stable-abi211-cu130-x86_64-linux/metadata.json
build/torch-stable-abi211-cu130-x86_64-linux/__init__.py
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from ..errors import BadOption
from ..native.ir.kernel_codec import read_kernels
from ..native.library.manifest_reader import Manifest, reading
from ..versions import OLDEST_TORCH
from .built import BuiltLibrary
from .package import package_files
from .wheel_file import write_whole

# Of one CUDA version the loader takes those of the same major version that are not later. The
# library needs of CUDA only the driver.
_CUDA = ("cu120", "cu130")
# The stable ABI that the adapters use.
_TORCH = f"torch-stable-abi{OLDEST_TORCH.replace('.', '')}"
_NAME = re.compile(r"[a-z][a-z0-9-]*[a-z0-9]")


def write_hub_layout(library: BuiltLibrary, output: Path, version: str) -> list[Path]:
    """Write the builds; returns their folders."""
    described = _metadata(library, version)
    files = {**library.files, **package_files(library, version), "metadata.json": described}
    places = [
        output / "build" / f"{_TORCH}-{cuda}-{library.platform.machine}-linux" for cuda in _CUDA
    ]
    for place in places:
        _refuse_other(place, _hub_name(library.name))
    for place in places:
        for name, content in sorted(files.items()):
            write_whole(place / name, content)
    return places


def _hub_name(name: str) -> str:
    made = name.replace("_", "-")
    if not _NAME.fullmatch(made):
        raise BadOption(
            f"a kernel on the Hub cannot be named {made}",
            fix="build the library with another --name: lowercase letters, digits and dashes, a "
            "letter first",
        )
    return made


def _metadata(library: BuiltLibrary, version: str) -> bytes:
    manifest = library.files[f"share/{library.name}/manifest.json"]
    digest = hashlib.sha256(manifest).hexdigest()[:12]
    from packaging.version import Version

    content = {
        "name": _hub_name(library.name),
        # Of the module, so another one for each build that a process may load.
        "id": f"_{library.name}_cuda_{digest}",
        "version": Version(version).major,
        # The loader wants one; yours is for you to write.
        "license": "unknown",
        "python-depends": [],
        "backend": {"type": "cuda", "archs": _archs(library, manifest)},
    }
    return (json.dumps(content, indent=2) + "\n").encode()


def _archs(library: BuiltLibrary, manifest: bytes) -> list[str]:
    """`sm_90a` -> `9.0a`; with PTX, which later GPUs compile, `9.0+PTX`."""
    whose = f"lib{library.name}.so"
    with reading(whose):
        kernels = read_kernels(Manifest(manifest, whose).content)
    images = [image for one in kernels for image in one.images]
    without = {image.arch for image in images if not image.ptx_sha256}
    found = []
    nvidias = [arch for arch in library.archs if arch.startswith("sm_")]
    if not nvidias:
        raise BadOption(
            f"{library.name} is for {library.built_for}, and this layout is for CUDA",
            fix="build it for an NVIDIA GPU, too, or ship a wheel",
        )
    for arch in nvidias:
        number = arch.removeprefix("sm_")
        plain = number.rstrip("af")
        shown = f"{plain[:-1]}.{plain[-1]}{number[len(plain) :]}"
        found.append(f"{shown}{'' if arch in without or not images else '+PTX'}")
    return found


def _refuse_other(place: Path, name: str) -> None:
    """A folder is one kernel's: files of another would stay beside these."""
    file = place / "metadata.json"
    try:
        found = json.loads(file.read_bytes()).get("name")
    except FileNotFoundError:
        return
    except (OSError, ValueError, AttributeError):
        found = "something else"
    if found != name:
        raise BadOption(
            f"{place} is not a build of {name}", found=str(found), fix="choose another folder: -o"
        )
