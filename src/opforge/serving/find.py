"""Finds the kernels of a recording again, and sees that they are the same."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
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
    _refuse_other_settings(kernel)
    if kernel.text:
        return _printed(kernel)
    return find_function(f"{kernel.module}:{kernel.name}", kernel.source, kernel.location)


def _refuse_other_settings(kernel: RecordedKernel) -> None:
    """Raise if Triton would compile other code here than where the kernel was recorded."""
    settings = _compat.settings
    found = settings.difference(kernel.settings, settings.current())
    if found is not None:
        name, then, now = found
        raise KernelChanged(
            f"{kernel.name} was recorded with another {name}, which changes what Triton compiles",
            found=f"{settings.told(now)}, but {settings.told(then)} was recorded",
            location=kernel.location,
            fix=f"build without {name}" if then is None else f"build with {name}={then}",
        )


def _printed(kernel: RecordedKernel) -> Any:
    """The jitted function of a text that Inductor printed; runs the text."""
    printed = _compat.inductor_kernels.Printed(kernel.name, kernel.text)
    if printed.source != kernel.source.partition("-")[0]:
        raise KernelChanged(
            f"{kernel.name}, which Inductor printed, calls functions of another torch than this",
            fix="build with the torch that the program was recorded with",
        )
    try:
        fn = _compat.inductor_kernels.function(printed)
    except Exception as error:
        raise KernelNotFound(
            f"the text of {kernel.name}, which Inductor printed, cannot be run",
            found=f"{type(error).__name__}: {error}",
            fix="build where the recorded program runs, with its packages",
        ) from error
    found = _hashed(kernel.name, lambda: _compat.inductor_kernels.source_of(printed, fn))
    if found != kernel.source:
        raise KernelChanged(
            f"{kernel.name}, which Inductor printed, is not the kernel that was recorded: "
            "something that it uses has been edited",
            fix="record again with `opforge record`",
        )
    return fn


def _hashed(name: str, made: Callable[[], str], location: str = "") -> str:
    try:
        return made()
    except _compat.kernel_hash.Unknown as error:
        raise KernelChanged(
            f"{name} may not be the kernel that was recorded: {error}",
            location=location or None,
            fix="use a number, or another constant, in its place",
        ) from None


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
    location = _compat.kernels.kernel_location(kernel)
    if _hashed(name, lambda: _compat.kernel_hash.digest(kernel), location) != source:
        raise KernelChanged(
            f"{name} is not the kernel that was recorded: it, or something that it uses, has "
            "been edited",
            location=location,
            fix="record again with `opforge record`",
        )
    return kernel


def _object(module: str, path: str, location: str) -> Any:
    try:
        # A file is imported under a name of its own, so that its `__main__` block does not run.
        if module.endswith(".py"):
            return locate(f"{module}:{path}")
        found = _imported(module, location)
        for name in path.split("."):
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
