"""Builds the kernels of a recording, and the C that serves them, into a folder."""

from __future__ import annotations

import sys
import sysconfig
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from importlib import resources
from pathlib import Path
from typing import Any

from ..arch import Arch
from ..arch_names import parse_archs
from ..errors import BuildFailed, NotFound, last_line
from ..native.artifacts.build_record import unknown, watching_imports
from ..native.artifacts.publish import check_writable
from ..native.artifacts.toolchain import compile_extension
from ..native.build import Result, compile_plan, publish
from ..native.codegen.sources import manifest
from ..native.ir.kernels import ServedFunction, image_file
from ..native.ir.program import Plan
from ..native.kernels.compile import Progress
from ..native.kernels.image_cache import USER_CACHE, Cache, remote_cache
from ..notebook import counted
from ..recording.model import Recording
from .find import recorded_archs, target_of
from .manifest import EXTENSION, NAME
from .plan import parse_widening, plan

# CPython's limited API: a module for 3.10 is one for every later version.
_FLAGS = ("-DPy_LIMITED_API=0x030A0000",)
# What the extension shares with native libraries.
_RUNTIME = (
    "arch.c", "arithmetic.h", "device.c", "driver.c", "driver.h", "driver_cuda.c", "driver_hip.c",
    "include/opforge/abi.h", "launcher.c", "message.c", "runtime.h", "tensor_map.c",
)  # fmt: skip


def build(
    recording: Recording,
    output: str | Path,
    *,
    archs: str | int | Iterable[str | int] = (),
    widen: Iterable[str] = (),
    jobs: int | None = None,
    executor: Executor | None = None,
    cache: Cache | None = USER_CACHE,
    progress: Progress | None = None,
    files: Iterable[Path] = (),
    arguments: Mapping[str, Any] | None = None,
) -> Result:
    """Compile what was recorded, and general variants of it, into `output`.

    Without `archs`, for the GPUs that it was recorded on. `widen` is as of the command.
    """
    check_writable(output)
    remote = None if cache is None else remote_cache()
    numbers = parse_archs(archs or recorded_archs(recording) or "sm_90")
    # Packages ask for the GPU when they are imported, and may define other kernels for another.
    with target_of(recording), watching_imports() as imported:
        made = plan(recording, [parse_widening(text) for text in widen], numbers)
    if not made.requests:
        raise NotFound(
            "there is nothing to build",
            found="; ".join(made.notes) or "a recording without kernels",
            fix="record a run that launches kernels which can be served",
        )
    planned = tuple(made.functions)
    library = compile_plan(
        made,
        executor=executor,
        jobs=jobs,
        cache=cache,
        remote=remote,
        progress=progress,
        drop=_drop,
    )
    contents = {
        image_file(kernel.key, image.arch): image.cubin
        for kernel in library.kernels
        for image in kernel.images
    }
    with tempfile.TemporaryDirectory(prefix="opforge-serve-") as folder:
        extension = build_extension(Path(folder))
        contents[extension.name] = extension.read_bytes()
    contents[NAME] = manifest(library)
    return publish(
        made,
        library,
        contents,
        output,
        imported=imported | unknown(_lacking(recording, planned)),
        others=[*_imported_sources(recording), *map(str, files)],
        arguments=arguments,
    )


def _imported_sources(recording: Recording) -> set[str]:
    """The files of everything that the kernels' packages import."""
    tops = {kernel.module.partition(".")[0] for kernel in recording.kernels}
    files = {
        getattr(module, "__file__", None) or ""
        for name, module in [*sys.modules.items()]
        if name.partition(".")[0] in tops
    }
    return {file for file in files if file.endswith(".py")}


def _lacking(recording: Recording, planned: Iterable[ServedFunction]) -> list[str]:
    """The files of kernels that were not found, or not as recorded: the next build looks again."""
    found = {(function.module, function.name, function.source) for function in planned}
    lacking = [k for k in recording.kernels if (k.module, k.name, k.source) not in found]
    return [kernel.location.rpartition(":")[0] or kernel.module for kernel in lacking]


def _drop(made: Plan, error: BuildFailed) -> None:
    """The others are worth building: what lacks is Triton's, or an error in strict mode."""
    made.notes += _lost(made, error.failed)
    for key, arch in error.failed:
        request, left = made.requests[key]
        made.requests[key] = request, tuple(a for a in left if a != arch)
    built = {key: request for key, request in made.requests.items() if request[1]}
    if not built:
        raise error
    made.requests = built
    made.functions = [_with_kernels(function, built) for function in made.functions]


def _with_kernels(function: ServedFunction, keys: Container[str]) -> ServedFunction:
    """What a function has of these kernels."""
    instances = []
    for instance in function.instances:
        variants = tuple(variant for variant in instance.variants if variant.kernel in keys)
        if variants:
            instances.append(instance._replace(variants=variants))
    return function._replace(instances=tuple(instances))


def _lost(made: Plan, failed: Mapping[tuple[str, Arch], str]) -> Iterator[str]:
    """A note per kernel, architectures and error, of the variants that do not compile."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for key in sorted(made.requests, key=made.spare.__contains__):
        archs = [arch for of, arch in failed if of == key]
        if not archs:
            continue
        shown = ", ".join(map(str, archs))
        why = last_line(failed[key, archs[0]])
        alike.setdefault((made.requests[key][0].name, shown, why), []).append(key)
    for (_, built_for, why), (first, *others) in alike.items():
        verb = "is" if len(others) == 1 else "are"
        more = f", nor {verb} {counted(len(others), 'other variant')} of it" if others else ""
        # Without the general ones, only what was recorded is covered.
        sizes = ", so not all sizes are covered" if first in made.spare else ""
        yield f"{made.requests[first][0]} is not built for {built_for}{more}{sizes}: {why}"


def build_extension(folder: Path) -> Path:
    """Compile `folder/_opforge_served.abi3.so`, for CPython 3.10 and later."""
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        raise BuildFailed(
            "Python.h, which the extension that serves launches is compiled with, is not installed",
            found=f"no {headers / 'Python.h'}",
            fix="install Python's headers (`apt install python3-dev`, `dnf install python3-devel`),"
            " or build with a Python that has them, such as conda's or uv's",
        )
    output = folder / f"{EXTENSION}.abi3.so"
    with tempfile.TemporaryDirectory(prefix="opforge-cc-") as sources:
        for name, content in extension_sources().items():
            Path(sources, name).write_bytes(content)
        compile_extension(Path(sources), output, headers, flags=_FLAGS)
    return output


def extension_sources() -> dict[str, bytes]:
    """The extension's own files, and those of the native runtime that it shares."""
    own = resources.files("opforge.serving").joinpath("extension").iterdir()
    runtime = resources.files("opforge.native").joinpath("runtime")
    shared = (runtime.joinpath(*name.split("/")) for name in _RUNTIME)
    return {file.name: file.read_bytes() for file in [*own, *shared]}
