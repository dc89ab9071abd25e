"""Compiles the extension that serves launches."""

from __future__ import annotations

import sysconfig
import tempfile
from importlib import resources
from pathlib import Path

from ...errors import BuildFailed
from ...native.artifacts.toolchain import compile_extension
from ..manifest import EXTENSION

# CPython's limited API: a module for 3.10 is one for every later version.
_FLAGS = ("-DPy_LIMITED_API=0x030A0000",)
_RUNTIME = (
    "arch.c", "arithmetic.h", "device.c", "driver.c", "driver.h", "driver_cuda.c", "driver_hip.c",
    "include/opforge/abi.h", "launcher.c", "message.c", "runtime.h", "tensor_map.c",
)  # fmt: skip


def build_extension(folder: Path) -> Path:
    """Compile `folder/_opforge_served.abi3.so`, for CPython 3.10 and later."""
    headers = _headers()
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / f"{EXTENSION}.abi3.so"
    with tempfile.TemporaryDirectory(prefix="opforge-cc-") as sources:
        for name, text in _sources().items():
            Path(sources, name).write_bytes(text)
        compile_extension(Path(sources), output, headers, flags=_FLAGS)
    return output


def _headers() -> Path:
    found = Path(sysconfig.get_path("include"))
    if not (found / "Python.h").is_file():
        raise BuildFailed(
            "Python.h, which the extension that serves launches is compiled with, is not installed",
            found=f"no {found / 'Python.h'}",
            fix="install Python's headers (`apt install python3-dev`, `dnf install python3-devel`),"
            " or build with a Python that has them, such as conda's or uv's",
        )
    return found


def _sources() -> dict[str, bytes]:
    """The extension's own files, and those of the native runtime that it shares."""
    here = resources.files(__package__)
    runtime = resources.files("opforge.native").joinpath("runtime")
    own = [f for f in here.iterdir() if f.name.endswith((".c", ".h", ".inc"))]
    shared = [runtime.joinpath(*name.split("/")) for name in _RUNTIME]
    return {f.name: f.read_bytes() for f in [*own, *shared]}
