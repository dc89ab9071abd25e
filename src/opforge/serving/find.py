"""Finds the kernels of a recording again, and sees that they are the same."""

from __future__ import annotations

import contextlib
import importlib
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from .. import _compat
from ..cli_targets import locate
from ..errors import KernelChanged, KernelNotFound, OpforgeError
from ..gpu_target import gpu_of
from ..recording.model import RecordedKernel, Recording


def target_of(recording: Recording) -> AbstractContextManager[None]:
    """As if on the GPU of a recording, also where there is none."""
    archs = [variant.arch for kernel in recording.kernels for variant in kernel.variants]
    if not archs:
        return contextlib.nullcontext()
    return _compat.driver.standing_in(gpu_of(archs[0]))


def find(kernel: RecordedKernel) -> Any:
    """The jitted function that was recorded; raises `KernelNotFound` or `KernelChanged`."""
    if kernel.text:
        return _printed(kernel)
    return find_function(f"{kernel.module}:{kernel.name}", kernel.source, kernel.location)


def _printed(kernel: RecordedKernel) -> Any:
    """The jitted function of a text that Inductor printed; runs the text."""
    printed = _compat.inductor_kernels.Printed(kernel.name, kernel.text)
    if printed.source != kernel.source:
        raise KernelChanged(
            f"{kernel.name}, which Inductor printed, calls functions of another torch than this",
            fix="build with the torch that the program was recorded with",
        )
    try:
        return _compat.inductor_kernels.function(printed)
    except Exception as error:
        raise KernelNotFound(
            f"the text of {kernel.name}, which Inductor printed, cannot be run",
            found=f"{type(error).__name__}: {error}",
            fix="build where the recorded program runs, with its packages",
        ) from error


def find_function(name: str, source: str, location: str = "") -> Any:
    """A jitted function by `module:qualified.name`, if it still has the recorded source."""
    module, _, path = name.rpartition(":")
    if "<locals>" in path:
        raise KernelNotFound(
            f"{path} is made inside a function, where a build cannot find it",
            location=location or module,
            fix="define the kernel at the top of its module",
        )
    found = _object(module, path, location)
    # Packages have wrappers of their own around Triton's.
    kernel = _compat.kernels.innermost(found)
    if not _compat.compiled.is_jitted(kernel):
        raise KernelNotFound(
            f"{name} is not a @triton.jit function",
            found=f"a {type(found).__name__}",
            location=location or None,
            fix="record again; under TRITON_INTERPRET=1 nothing can be built",
        )
    if _compat.compiled.source_hash(kernel) != source:
        raise KernelChanged(
            f"{name} is not the kernel that was recorded: it, or something that it calls, has "
            "been edited",
            location=_compat.kernels.kernel_location(kernel),
            fix="record again with `opforge record`",
        )
    return kernel


def find_constant(name: str, source: str | None) -> Any:
    """A jitted function with its source, or anything else by its name."""
    if source is not None:
        return find_function(name, source)
    module, _, path = name.rpartition(":")
    return _object(module, path, "")


def _object(module: str, path: str, location: str) -> Any:
    first, *rest = path.split(".")
    try:
        # A file is imported under a name of its own, so that its `__main__` block does not run.
        if module.endswith(".py"):
            found = locate(f"{module}:{first}")
        else:
            found = getattr(_imported(module, location), first)
        for name in rest:
            found = getattr(found, name)
    except OpforgeError:
        raise
    except Exception as error:
        # Packages raise anything where they miss a GPU or a library.
        raise KernelNotFound(
            f"{module}:{path} was recorded, but cannot be imported",
            found=f"{type(error).__name__}: {error}",
            location=location or None,
            fix="build where the recorded program runs, with its packages",
        ) from error
    return found


def _imported(module: str, location: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        folder, package = _package_around(location)
        if error.name is None or not f"{module}.".startswith(f"{error.name}.") or not package:
            raise
    # `python -m` has the current folder on the path, and some packages put folders of their own
    # there when they are imported.
    sys.path.append(str(folder))
    try:
        importlib.import_module(package)
        return importlib.import_module(module)
    finally:
        sys.path.remove(str(folder))


def _package_around(location: str) -> tuple[Path, str]:
    """The outermost package of a file, and where it is: `/a/fla/ops/gla.py:12` -> `/a`, `fla`."""
    path = Path(location.rpartition(":")[0])
    folder, name = path.parent, path.stem if path.is_file() else ""
    while (folder / "__init__.py").is_file():
        folder, name = folder.parent, folder.name
    return folder, name
