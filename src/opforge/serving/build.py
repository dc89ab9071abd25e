"""Builds the kernels of a recording, and the C that serves them, into a folder."""

from __future__ import annotations

import dataclasses
import functools
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from .. import _compat
from ..arch import Arch
from ..arch_names import parse_archs
from ..errors import BuildFailed, NotFound, last_line
from ..native.artifacts.build_record import make, unknown, watching_imports
from ..native.artifacts.publish import Written, check_writable, write_output
from ..native.artifacts.toolchain import compile_extension
from ..native.ir.kernel_request import Requests, want
from ..native.ir.program import Image
from ..native.kernels.compile import Progress, compile_all
from ..native.kernels.image_cache import USER_CACHE, Cache, remote_cache
from ..notebook import counted, size
from ..recording.model import Recording
from .find import recorded_archs, target_of
from .manifest import (
    EXTENSION,
    NAME,
    Manifest,
    ServedImage,
    ServedInstance,
    ServedKernel,
    ServedMap,
    ServedVariant,
)
from .plan import (
    PlannedInstance,
    PlannedKernel,
    PlannedVariant,
    ServedPlan,
    most_specialized_first,
    parse_widening,
    plan,
)

# CPython's limited API: a module for 3.10 is one for every later version.
_FLAGS = ("-DPy_LIMITED_API=0x030A0000",)
# What the extension shares with native libraries.
_RUNTIME = (
    "arch.c", "arithmetic.h", "device.c", "driver.c", "driver.h", "driver_cuda.c", "driver_hip.c",
    "include/opforge/abi.h", "launcher.c", "message.c", "runtime.h", "tensor_map.c",
)  # fmt: skip

Images = Mapping[tuple[str, Arch], Image]


@dataclass(frozen=True)
class Built:
    """A folder of served kernels: its manifest, which files changed, and notes."""

    folder: Path
    manifest: Manifest
    written: Written
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        archs = ", ".join(map(str, self.manifest.archs))
        instances = [i for kernel in self.manifest.kernels for i in kernel.instances]
        variants = sum(len(instance.variants) for instance in instances)
        changed, same = len(self.written.changed), len(self.written.unchanged)
        return (
            f"{self.folder}: {counted(len(self.manifest.kernels), 'kernel')}, "
            f"{counted(variants, 'variant')} for {archs}; "
            f"{counted(changed, 'file')} of {changed + same} changed"
        )

    def weights(self) -> list[str]:
        """A line per kernel: its bytes on each architecture."""
        return [
            f"  {kernel.name}: {counted(sum(len(i.variants) for i in kernel.instances), 'variant')}"
            f", {', '.join(self._sizes(kernel))}"
            for kernel in self.manifest.kernels
        ]

    def _sizes(self, kernel: ServedKernel) -> list[str]:
        # Instances may share images.
        images = {i.file: i for one in kernel.instances for v in one.variants for i in v.images}
        return [
            f"{size(sum(i.size for i in images.values() if i.arch == arch))} for {arch}"
            for arch in self.manifest.archs
        ]


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
) -> Built:
    """Compile what was recorded, and general variants of it, into `output`.

    Without `archs`, for the GPUs that it was recorded on. `widen` is as of the command.
    """
    check_writable(output)
    remote = None if cache is None else remote_cache()
    numbers = parse_archs(archs or recorded_archs(recording) or "sm_90")
    # Packages ask for the GPU when they are imported, and may define other kernels for another.
    with target_of(recording), watching_imports() as imported:
        planned = plan(recording, [parse_widening(text) for text in widen])
    if not any(planned.variants()):
        raise NotFound(
            "there is nothing to build",
            found="; ".join(planned.notes) or "a recording without kernels",
            fix="record a run that launches kernels which can be served",
        )
    compile_images = functools.partial(
        compile_all,
        executor=executor,
        jobs=jobs,
        cache=cache,
        remote=remote,
        progress=progress,
    )
    images = _compiled(planned, numbers, compile_images)
    contents: dict[str, bytes] = {}
    kernels = tuple(_kernel(kernel, numbers, images, contents) for kernel in planned.kernels)
    with tempfile.TemporaryDirectory(prefix="opforge-serve-") as folder:
        extension = build_extension(Path(folder))
        contents[extension.name] = extension.read_bytes()
    settings = _compat.settings.current()
    manifest = Manifest(numbers, _compat.compiling.version(), kernels, settings)
    contents[NAME] = manifest.to_json().encode()
    read = imported | unknown(_lacking(recording, planned))
    sources = {file for file in _sources(recording, planned) if Path(file).is_file()}
    stamp = make(output, arguments or {}, read, sources | {*map(str, files)})
    written = write_output(output, contents, stamp=stamp, name="served")
    return Built(Path(output), manifest, written, tuple(planned.notes))


def _sources(recording: Recording, planned: ServedPlan) -> set[str]:
    """The files of the kernels, and of everything that their packages import and that they use."""
    tops = {kernel.module.partition(".")[0] for kernel in recording.kernels}
    files = {
        getattr(module, "__file__", None) or ""
        for name, module in [*sys.modules.items()]
        if name.partition(".")[0] in tops
    }
    files |= {kernel.location.rpartition(":")[0] for kernel in recording.kernels}
    used = [_compat.kernel_hash.hash_or_unique(kernel.fn).files for kernel in planned.kernels]
    return {file for file in files if file.endswith(".py")}.union(*used)


def _lacking(recording: Recording, planned: ServedPlan) -> list[str]:
    """The files of kernels that were not found, or not as recorded: the next build looks again."""
    built = {kernel.recorded.identity for kernel in planned.kernels}
    lacking = [kernel for kernel in recording.kernels if kernel.identity not in built]
    return [kernel.location.rpartition(":")[0] or kernel.module for kernel in lacking]


def _compiled(
    planned: ServedPlan, archs: tuple[Arch, ...], compile_images: Callable[..., Images]
) -> Images:
    requests: Requests = {}
    for variant in planned.variants():
        want(requests, variant.request, archs)
    try:
        return compile_images(requests.values())
    except BuildFailed as error:
        # The others are worth building: what lacks is Triton's, or an error in strict mode.
        for key, arch in error.failed:
            request, left = requests[key]
            requests[key] = request, tuple(a for a in left if a != arch)
        if not any(left for _, left in requests.values()):
            raise
        planned.notes += _lost(planned, error.failed)
        return compile_images(requests.values())


def _lost(planned: ServedPlan, failed: Mapping[tuple[str, Arch], str]) -> Iterator[str]:
    """A note per kernel, architectures and error, of the variants that do not compile."""
    alike: dict[tuple[str, str, str], list[PlannedVariant]] = {}
    for variant in sorted(planned.variants(), key=lambda variant: variant.is_general):
        key = variant.request.key
        archs = [arch for of, arch in failed if of == key]
        if archs:
            why = last_line(failed[key, archs[0]])
            shown = ", ".join(map(str, archs))
            alike.setdefault((variant.request.name, shown, why), []).append(variant)
    for (_, built_for, why), (first, *others) in alike.items():
        verb = "is" if len(others) == 1 else "are"
        more = f", nor {verb} {counted(len(others), 'other variant')} of it" if others else ""
        # Without the general ones, only what was recorded is covered.
        sizes = ", so not all sizes are covered" if first.is_general else ""
        yield f"{first.request} is not built for {built_for}{more}{sizes}: {why}"


def _kernel(
    kernel: PlannedKernel, archs: tuple[Arch, ...], images: Images, files: dict[str, bytes]
) -> ServedKernel:
    def variant(planned: PlannedVariant) -> ServedVariant:
        built = [arch for arch in archs if (planned.request.key, arch) in images]
        return ServedVariant(planned.types, tuple(_image(planned, a, images, files) for a in built))

    def instance(planned: PlannedInstance) -> ServedInstance:
        variants = map(variant, most_specialized_first(planned.variants))
        return ServedInstance(
            tuple(planned.constants.items()),
            planned.kinds,
            tuple(planned.options.items()),
            tuple(variant for variant in variants if variant.images),
            planned.names if any("." in name for name in planned.names) else (),
        )

    recorded, instances = kernel.recorded, map(instance, kernel.instances.values())
    return ServedKernel(
        recorded.module,
        recorded.name,
        recorded.source,
        recorded.location,
        tuple(instance for instance in instances if instance.variants),
        recorded.choices,
    )


def _image(
    variant: PlannedVariant, arch: Arch, images: Images, files: dict[str, bytes]
) -> ServedImage:
    key = variant.request.key
    image = images[key, arch]
    file = f"images/{key}.{arch}.{'hsaco' if arch.is_amd else 'cubin'}"
    files[file] = image.cubin
    return ServedImage(
        arch=arch,
        file=file,
        size=len(image.cubin),
        symbol=image.function,
        num_warps=image.num_warps,
        shared=image.shared,
        num_ctas=image.num_ctas,
        cooperative=image.cooperative,
        pdl=image.pdl,
        scratch_size=image.global_scratch_size,
        scratch_align=image.global_scratch_align,
        maps=tuple(ServedMap(*dataclasses.astuple(one)) for one in image.maps),
        descriptor_flags=image.descriptor_flags,
    )


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
