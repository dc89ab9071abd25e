"""Compiles kernel variants to images, in parallel, and only those that are not in the cache."""

from __future__ import annotations

import dataclasses
import re
import tempfile
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ..._compat import compiling
from ...arch import Arch
from ...arch_names import check_arch
from ...errors import BadOption, BuildFailed, warn
from ...notebook import counted
from ...progress import Log, ProgressBar
from ..ir.kernel_request import OWN_SOURCE, Request
from ..ir.kernels import Image, TensorMap
from ..ir.wording import one_of
from . import objects, workers
from .image_cache import (
    USER_CACHE,
    Cache,
    CorruptEntry,
    OpenToOthers,
    RemoteCache,
    cache_key,
    decode,
    encode,
)

# In threads, of every AMD GPU.
_LARGEST_BLOCK = 1024
# Above 8, a launch asks the driver to allow it.
_CLUSTERS = (1, 2, 4, 8, 16)
_TMA_BYTES = 16
# Where MLIR begins to print a module, or how to run its passes again.
_DUMP = re.compile(r"#\w+ = #|module |\{-#")
# Operators that launch a kernel which does not compile.
_MOST_NAMED = 4
_LACKING = re.compile(r"type (fp8\w+) not supported in this architecture")
_CANCELLED = (
    "its executor gave up: it was shut down, or lost its scheduler; build again, and kernels that "
    "were compiled come from the cache"
)


class Progress:
    """Counts images for a bar, or tells a log of them every `seconds`; without either, silent.

    `start` comes first, `stop` last, even after an error. Both may come twice: a build that drops
    optional kernels compiles again.
    """

    def __init__(self, shown: ProgressBar | None = None, seconds: float = 10.0) -> None:
        self._shown = shown or Log(quiet=True)
        self._seconds = seconds
        self._next = time.monotonic() + seconds

    def start(self, total: int) -> None:
        self.total = total
        self.finished = self.cached = self.failed = 0
        self._shown.start(total)
        if total:
            self._shown.detail(f"compiling {counted(total, 'image')}")

    def done(self, label: str, *, cached: bool = False, failed: bool = False) -> None:
        """A variant is finished, such as `silu sm_90`."""
        self.finished += 1
        self.cached += cached
        self.failed += failed
        self._shown.advance(label)
        if self.finished < self.total and self._is_due():
            self._shown.detail(self._count())

    def traced(self, op: str, paths: int) -> None:
        """Comes before `start`, after each path of an op that was traced."""
        if self._is_due():
            self.note(f"tracing {op}: {counted(paths, 'path')} so far")

    def note(self, text: str) -> None:
        self._shown.say(text)

    def stop(self) -> None:
        self._shown.stop(self._asides())
        if self.total:
            self._shown.detail(self._count())

    def _count(self) -> str:
        asides = self._asides()
        return f"compiled {self.finished} of {self.total}{f' ({asides})' if asides else ''}"

    def _asides(self) -> str:
        """`3 cached, 1 failed`; empty if none was."""
        counts = {"cached": self.cached, "failed": self.failed}
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count)

    def _is_due(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True


@dataclass(frozen=True)
class _Task:
    """A variant for one architecture."""

    request: Request
    arch: Arch
    options: dict[str, object] = field(compare=False)
    key: str = ""

    @property
    def result_key(self) -> tuple[str, Arch]:
        return self.request.key, self.arch

    @property
    def label(self) -> str:
        return f"{self.request.name} {self.arch}"


_Result = compiling.CompiledJob | compiling.Failed
_Lowered = tuple[_Task, compiling.Job]


def compile_all(
    requests: Iterable[tuple[Request, tuple[Arch, ...]]],
    *,
    executor: Executor | None = None,
    jobs: int | None = None,
    cache: Cache | None = USER_CACHE,
    remote: RemoteCache | None = None,
    ptx: bool = False,
    progress: Progress | None = None,
    launched_by: Mapping[str, Sequence[str]] | None = None,
) -> dict[tuple[str, Arch], Image]:
    """Compile each variant for its architectures; the results by `(request.key, arch)`.

    Without an `executor`, `jobs` processes do the work (default: all cores). `cache=None`
    disables the cache. `remote` is asked for what the cache lacks, and gets what is compiled.
    Cubins name source files for profilers, without their folders, so that the same project gives
    the same bytes anywhere. Every variant is tried before `BuildFailed`
    names those that failed, and who launches them, `launched_by` key of a request; the others are
    in the cache by then.

        images = compile_all([(request, parse_archs(["sm_80", "sm_90"]))], jobs=8)
        images[request.key, HOPPER].cubin
    """
    if jobs is not None and jobs < 1:
        raise BadOption(f"jobs={jobs} cannot compile anything", fix="give a number of at least 1")
    wanted = list(requests)
    for arch in sorted({arch for _, archs in wanted for arch in archs}):
        check_arch(arch)
    build = _Build(cache, remote, progress or Progress())
    pairs = {(request.key, arch): request for request, archs in wanted for arch in archs}
    tasks = [build.task(request, arch) for (_, arch), request in pairs.items()]
    build.progress.start(len(tasks))
    try:
        missing = [task for task in tasks if not build.take_cached(task)]
        if missing and remote is not None:
            missing = build.without_shared(missing, remote)
        if missing:
            build.compile(missing, executor, jobs)
        if remote is not None:
            remote.finish()
    finally:
        build.progress.stop()
    if build.failures:
        raise _error(build.failures, launched_by or {})
    # In the order of the requests, not of the workers.
    images = {task.result_key: build.images[task.result_key] for task in tasks}
    return images if ptx else {key: image.holding(image.cubin) for key, image in images.items()}


@dataclass
class _Build:
    """The state of one call; `failures` has tasks, and why they failed."""

    cache: Cache | None
    remote: RemoteCache | None
    progress: Progress
    images: dict[tuple[str, Arch], Image] = field(default_factory=dict)
    failures: list[tuple[_Task, str]] = field(default_factory=list)

    def task(self, request: Request, arch: Arch) -> _Task:
        if not compiling.is_compilable(request.fn):
            return _Task(request, arch, {})
        options = compiling.launch_options(request.fn, _options_for(request, arch))
        try:
            key = cache_key(request, arch, options)
        except Exception:  # noqa: BLE001  # bad options raise again, and are told, in `_lower`
            key = ""
        return _Task(request, arch, options, key)

    def take_cached(self, task: _Task) -> bool:
        if self.cache is None or not task.key:
            return False
        try:
            image = self.cache.read(task.key)
        except OpenToOthers as error:
            # Said once: the other entries are most likely the same.
            warn(f"the cache of compiled kernels is not used: {error}")
            self.cache = None
            return False
        except CorruptEntry as error:
            self.progress.note(f"ignoring a cache entry: {error}")
            return False
        if image is not None:
            self.images[task.result_key] = image
            self.progress.done(task.label, cached=True)
        return image is not None

    def without_shared(self, tasks: list[_Task], remote: RemoteCache) -> list[_Task]:
        """Take what the shared cache has; the others."""
        entries = remote.read(dict.fromkeys(task.key for task in tasks if task.key))
        missing = []
        for task in tasks:
            if task.key not in entries:
                missing.append(task)
                continue
            try:
                image = decode(task.key, entries[task.key], f"{remote.shown}, {task.key}")
            except CorruptEntry as error:
                self.progress.note(f"ignoring an entry of the shared cache: {error}")
                missing.append(task)
                continue
            self._keep(task, image)
            self.progress.done(task.label, cached=True)
        return missing

    def compile(self, tasks: list[_Task], executor: Executor | None, jobs: int | None) -> None:
        if executor is not None:
            for task, _ in self._pipeline(tasks, executor):
                self._fail(task, "a worker died while it compiled this or another kernel")
            return
        with workers.start_pool(min(jobs or workers.default_jobs(), len(tasks))) as pool:
            stranded = self._pipeline(tasks, pool)
        # A compiler crash kills its worker and with it the whole pool. Running each job alone
        # shows which kernel it was, and finishes the others.
        for task, job in stranded:
            self._alone(task, job)

    def _alone(self, task: _Task, job: compiling.Job) -> None:
        with tempfile.TemporaryDirectory() as folder, workers.start_pool(1) as pool:
            log = Path(folder) / "log"
            future = pool.submit(compiling.run, dataclasses.replace(job, log=str(log)))
            try:
                self._take(task, job, future)
            except BrokenExecutor:
                output = log.read_text(errors="replace") if log.exists() else ""
                died = "the compiler process died: it crashed or ran out of memory"
                text = f"{died}\n{output.strip()}".strip()
                self._fail(task, text + _hint(task, text, job.text))

    def _pipeline(self, tasks: list[_Task], executor: Executor) -> list[_Lowered]:
        """Lower here while workers compile; returns the jobs lost with a broken executor."""
        pending: dict[Future[_Result], _Lowered] = {}
        finished: SimpleQueue[Future[_Result]] = SimpleQueue()
        stranded: list[_Lowered] = []

        def take_next() -> None:
            future = finished.get()
            task, job = pending.pop(future)
            try:
                self._take(task, job, future)
            except BrokenExecutor:
                stranded.append((task, job))

        try:
            for task in tasks:
                try:
                    job = _lowered(task)
                except BuildFailed as error:
                    self._fail(task, error.what)
                    continue
                try:
                    # All may wait at once: a job takes a few kilobytes.
                    future = executor.submit(compiling.run, job)
                except BrokenExecutor:
                    stranded.append((task, job))
                    continue
                pending[future] = task, job
                future.add_done_callback(finished.put)
                while not finished.empty():
                    take_next()
            while pending:
                take_next()
        except BaseException:
            for future in pending:
                future.cancel()
            raise
        return stranded

    def _take(self, task: _Task, job: compiling.Job, future: Future[_Result]) -> None:
        try:
            image = _image(task, job, future.result())
        except BrokenExecutor:
            raise
        except CancelledError:
            self._fail(task, _CANCELLED)
        except (BuildFailed, objects.BadObject) as error:
            self._fail(task, str(error))
        except Exception as error:  # noqa: BLE001  # an executor's own, of any kind
            self._fail(task, f"the worker failed: {compiling.error_text(error)}")
        else:
            self._keep(task, image)
            if self.remote is not None and task.key:
                self.remote.offer(task.key, encode(task.key, image))
            self.progress.done(task.label)

    def _keep(self, task: _Task, image: Image) -> None:
        self.images[task.result_key] = image
        if self.cache is None or not task.key:
            return
        try:
            self.cache.write(task.key, image)
        except OSError as error:
            # A build works without the cache, so one note is enough.
            self.progress.note(f"cannot write to the cache: {error}")
            self.cache = None

    def _fail(self, task: _Task, text: str) -> None:
        self.failures.append((task, _readable(text)))
        self.progress.done(task.label, failed=True)


# Inline assembly that wants a float, double, half or 64-bit register, as only NVIDIA's GPUs have.
_NVIDIAS = re.compile(r'constraints = "(?:[^"]*,)?[=&+]*[fdhl][^"]*"')


def _readable(text: str) -> str:
    """A compiler's message without the module and the command to report it with."""
    kept: list[str] = []
    is_dump = False
    for line in text.splitlines():
        is_dump = is_dump or _DUMP.match(line) is not None
        if not is_dump and line.strip() and not line.startswith("Repro command:"):
            kept.append(line)
        is_dump = is_dump and line not in {"}", "#-}"}
    return "\n".join(kept)


def _hint(task: _Task, text: str, code: str = "") -> str:
    """What a failure may be due to, and the compiler says nothing of: code for other GPUs.

    `code` is what the kernel was lowered to, if it was.
    """
    arch, is_gluon = task.arch, task.request.fn.is_gluon()
    lacking = _LACKING.search(text)
    if lacking is not None:
        return (
            f"; {arch} has no {lacking[1]}: branch on the GPU (torch.version.hip, "
            "torch.cuda.get_device_capability()) and launch a kernel of another dtype there, or "
            "build for GPUs that have it"
        )
    if arch.is_amd and "inline_asm" in code:
        return (
            f"\nit has inline assembly, which for {arch} must be AMD's: "
            "launch another kernel where torch.version.hip is set"
        )
    if arch.is_amd and is_gluon and not code:
        # Triton prints the line, and raises without it.
        threads = f"warps of {arch.warp_size} threads"
        return f"; it is a Gluon kernel: are its layouts for {threads}, and its instructions AMD's?"
    if is_gluon and code:
        return (
            f"\nit is a Gluon kernel: if {arch} lacks what it uses, "
            "launch another under a check of torch.cuda.get_device_capability()"
        )
    return ""


def _options_for(request: Request, arch: Arch) -> dict[str, object]:
    """Those of the launch; for AMD, kernels that opforge wrote have others in their place."""
    options = dict(request.options)
    if arch.is_amd and request.location.startswith(OWN_SOURCE):
        # Denormal numbers are kept anyway, and there is no product that stays apart from a sum.
        options.pop("enable_reflect_ftz", None)
        options["enable_fp_fusion"] = False
    return options


def _lowered(task: _Task) -> compiling.Job:
    request = task.request
    refused = _refused(request, task.arch)
    if refused:
        raise BuildFailed(refused)
    try:
        variant = compiling.Variant(
            request.fn,
            task.arch,
            dict(request.signature),
            dict(request.constants),
            task.options,
            request.divisible,
        )
        job = compiling.lower(variant, full_paths=False)
    except Exception as error:  # the compiler raises of any kind
        text = compiling.error_text(error)
        raise BuildFailed(text + _hint(task, text)) from error
    asked = _NVIDIAS.search(job.text) if task.arch.is_amd else None
    if asked is not None:
        # LLVM ends the process, or, in Triton 3.9, prints an error and leaves the assembly out.
        text = f"no register of {task.arch} fits {asked[0]}"
        raise BuildFailed(text + _hint(task, text, job.text))
    return job


def _refused(request: Request, arch: Arch) -> str | None:
    if not compiling.is_compilable(request.fn):
        return "it is not a jitted kernel; nothing can be compiled under TRITON_INTERPRET=1"
    options: dict[str, Any] = dict(request.options)
    if options.get("launch_pdl") and not arch.is_hopper_or_later:
        return f"launch_pdl=True needs sm_90 or later, which {arch} is not"
    ctas, warps = options.get("num_ctas") or 1, options.get("num_warps") or 1
    if ctas not in _CLUSTERS:
        return f"num_ctas={ctas} is not the size of a cluster: {one_of(map(str, _CLUSTERS))}"
    if arch.is_amd and ctas > 1:
        return f"num_ctas={ctas} needs clusters, which {arch} does not have"
    if arch.is_amd and warps * arch.warp_size > _LARGEST_BLOCK:
        threads = f"{warps * arch.warp_size} threads, {arch.warp_size} to a warp"
        most = _LARGEST_BLOCK // arch.warp_size
        return (
            f"num_warps={warps} is {threads}, and a block of {arch} has {_LARGEST_BLOCK}; "
            f"pass num_warps={most} at most"
        )
    return None


def _image(task: _Task, job: compiling.Job, made: _Result) -> Image:
    if isinstance(made, compiling.Failed):
        raise BuildFailed(made.text + _hint(task, made.text, job.text))
    described = [name for name, kind in task.request.signature if kind.startswith("tensordesc")]
    for name, found in zip(described, made.maps, strict=False):
        # Triton compiles it, and every encoding of the tensor map then refuses it.
        width = found.block[-1] * found.element_size
        if width < _TMA_BYTES:
            raise BuildFailed(
                f"{name} has a block {width} bytes wide, and TMA copies at least {_TMA_BYTES}"
            )
    arch = task.arch
    if arch.is_amd:
        registers, spills = objects.check(
            made.cubin,
            arch,
            made.function,
            [(name, kind) for name, kind in task.request.signature if kind != "constexpr"],
            threads=made.num_warps * arch.warp_size,
            shared=made.shared,
            flags=made.descriptor_flags,
        )
    else:
        registers, spills = objects.usage(made.cubin, made.function, arch)
    facts = vars(made) | {"maps": tuple(TensorMap(*one) for one in made.maps)}
    cubin, ptx = facts.pop("cubin"), facts.pop("ptx")
    return Image(arch, **facts, registers=registers, spills=spills).holding(cubin, ptx)


def _error(
    failures: list[tuple[_Task, str]], launched_by: Mapping[str, Sequence[str]]
) -> BuildFailed:
    """One paragraph per error; variants and architectures that fail alike share it."""
    alike: dict[tuple[str, str], list[_Task]] = {}
    for task, text in failures:
        alike.setdefault((task.request.location, text), []).append(task)
    kernels = len({location for location, _ in alike})
    what = f"{kernels} kernels do not compile" if kernels > 1 else "a kernel does not compile"
    texts = [
        _paragraph(location, text, each, launched_by)
        for (location, text), each in sorted(alike.items())
    ]
    error = BuildFailed("\n\n".join([what, *texts]))
    error.failed = {task.result_key: text for task, text in failures}
    return error


def _paragraph(
    location: str, text: str, tasks: list[_Task], launched_by: Mapping[str, Sequence[str]]
) -> str:
    archs = ", ".join(str(a) for a in sorted({task.arch for task in tasks}))
    others = len({task.request.key for task in tasks}) - 1
    more = f", and {counted(others, 'more variant')} of it" if others else ""
    who = list(dict.fromkeys(w for t in tasks for w in launched_by.get(t.request.key, ())))
    rest = f" and {len(who) - _MOST_NAMED} more" if len(who) > _MOST_NAMED else ""
    by = f"\n  launched by {', '.join(who[:_MOST_NAMED])}{rest}" if who else ""
    body = textwrap.indent(text, "    ")
    return f"{location}: {tasks[0].request} for {archs}{more}{by}\n{body}"
