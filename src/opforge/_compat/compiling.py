"""Triton's compiler in two parts: lowering needs the kernel, the rest only its text.

`lower` runs where the kernel's Python function is; `run` runs anywhere, in a process that has
neither torch nor the user's module. Together they give the same bytes as `triton.compile`.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import triton
from triton._C.libtriton import get_cache_invalidating_env_vars, ir
from triton.backends import backends
from triton.backends.compiler import GPUTarget, Language
from triton.compiler.compiler import ASTSource, make_backend
from triton.compiler.errors import CompilationError
from triton.runtime.jit import JITCallable

from ..arch import CUDA, HIP, Arch
from . import patches, settings, tma
from .kernel_hash import hash_or_unique


@dataclass(frozen=True)
class Variant:
    """A jitted function with the types, constants and options of one launch, and its target.

    `divisible` holds the parameters, by position, that are multiples of 16.
    """

    fn: Any
    arch: Arch
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    options: Mapping[str, Any]
    divisible: tuple[int, ...] = ()


@dataclass(frozen=True)
class Job:
    """A kernel as text, with what the compiler must know about it; small and picklable."""

    text: str
    # The compiler stage to start from: "ttir", or "ttgir" for a Gluon kernel.
    stage: str
    arch: Arch
    options: tuple[tuple[str, Any], ...]
    triton: str
    # The process that made the job; output is held back in all others.
    process: int
    # Where stderr goes, so that the parent can read it after the worker has died.
    log: str = ""


@dataclass(frozen=True)
class CompiledJob:
    """What the compiler made from a job; of AMD's, `cubin` is the hsaco, and there is no PTX."""

    cubin: bytes
    ptx: str
    function: str
    num_warps: int
    shared: int
    global_scratch_size: int
    global_scratch_align: int
    profile_scratch_size: int
    num_ctas: int
    cooperative: bool
    pdl: bool
    maps: tuple[tma.ExpectedMap, ...]
    descriptor_flags: int


@dataclass(frozen=True)
class Failed:
    """Why the compiler failed, in its own words."""

    text: str


class UnknownOption(Exception):
    """A launch option that this Triton does not have for the target."""


def version() -> str:
    return str(triton.__version__)


def is_compilable(fn: Any) -> bool:
    """Whether a kernel is jitted, which it is not under TRITON_INTERPRET=1."""
    return isinstance(fn, triton.JITFunction)


def constant_key(value: Any) -> str:
    """A constant as the cache key holds it: a jitted function's source, otherwise its repr."""
    if type(value) in {tuple, list}:
        return repr([constant_key(item) for item in value])
    return hash_or_unique(value).digest if isinstance(value, JITCallable) else repr(value)


def launch_options(fn: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a launch, with those that the JIT adds."""
    return settings.jit_options(options, debug=fn.debug)


def environment_key(arch: Arch, options: Mapping[str, Any]) -> str:
    """Everything that the result of compiling depends on: versions, options, variables."""
    backend = make_backend(_target(arch))
    parsed = _parsed(backend, options)
    variables = sorted(get_cache_invalidating_env_vars().items())
    # A knob that a program assigns need not be among the variables.
    return f"{version()}-{backend.hash()}-{parsed.hash()}-{variables}-{settings.current()}"


def lower(variant: Variant, *, full_paths: bool = True) -> Job:
    """A kernel's text for a target; raises what Triton raises.

    Its line numbers name source files by their full paths, as Triton does, or by file name.
    """
    source, module = to_ttir(variant)
    text = str(module)
    if not full_paths:
        text = re.sub(r'\bloc\("[^"]*/([^"/]+)":', r'loc("\1":', text)
    # ptxas takes ASCII without quotes and line ends; MLIR writes the bytes of others as `\\C3`.
    text = re.sub(r'\bloc\("[^"]*\\[^"]*":', _in_ascii, text)
    given = tuple(sorted(variant.options.items()))
    return Job(text, source.ext, variant.arch, given, version(), os.getpid())


def _in_ascii(place: re.Match[str]) -> str:
    return re.sub(r"(\\(\\|[0-9A-F]{2}))+", "_", place[0])


def by_triton(variant: Variant) -> Any:
    """What Triton's JIT makes of a variant, loaded onto the current device."""
    options = launch_options(variant.fn, variant.options)
    made = triton.compile(_source_of(variant), target=_target(variant.arch), options=options)
    made._init_handles()
    return made


def _source_of(variant: Variant) -> Any:
    fn = variant.fn
    signature, paths = _nested(fn, variant.signature)
    order = [*variant.signature]
    attrs = {paths[order[i]]: [["tt.divisibility", 16]] for i in variant.divisible}
    constants = {paths[name]: value for name, value in variant.constants.items()}
    return _source_class(fn)(fn, signature, constants, attrs)


def _nested(
    fn: Any, signature: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """A signature with `xs.0` and `xs.1` as Triton has it, and Triton's path of each name."""
    made: dict[str, Any] = {}
    paths = {}
    for name, kind in signature.items():
        root, *places = name.split(".")
        paths[name] = (fn.arg_names.index(root), *map(int, places))
        holder, key = made, root
        for place in places:
            holder, key = holder.setdefault(key, {}), place
        holder[key] = kind
    return {name: _tupled(kind) for name, kind in made.items()}, paths


def _tupled(kind: Any) -> Any:
    return tuple(map(_tupled, kind.values())) if isinstance(kind, dict) else kind


def to_ttir(variant: Variant) -> tuple[Any, Any]:
    """A kernel's source and its MLIR module, before any pass; raises what Triton raises."""
    target = _target(variant.arch)
    backend = make_backend(target)
    parsed = _parsed(backend, variant.options)
    source = _source_of(variant)
    context = _context(backend)
    functions = backend.get_codegen_implementation(parsed)
    token = _asked_target.set(target)
    try:
        with _TARGET_INFO:
            module = source.make_ir(target, parsed, functions, backend.get_module_map(), context)
    finally:
        _asked_target.reset(token)
    return source, module


_asked_target: contextvars.ContextVar[Any] = contextvars.ContextVar("opforge_compiled_for")


def _compiled_for(original: Any) -> Any:
    def made() -> Any:
        return _asked_target.get(None) or original()

    made.__triton_builtin__ = True  # type: ignore[attr-defined]
    return made


_TARGET_INFO = patches.PatchScope(
    lambda: [patches.TARGET_INFO.by("current_target", _compiled_for)], finds_the_same=True
)


def run(job: Job) -> CompiledJob | Failed:
    """The compiler's stages from a kernel's text to a cubin or hsaco."""
    if job.triton != version():
        return Failed(f"Triton {job.triton} asked for it, but the worker has {version()}")
    with _held_back(job) as said:
        try:
            return _stages(job)
        except Exception as error:  # noqa: BLE001  # the compiler raises anything
            # MLIR prints what is wrong to stderr, then raises "PassManager::run failed".
            text = error_text(error)
            return Failed(f"{said().strip()}\n{text}".strip())


def error_text(error: BaseException) -> str:
    """`CompilationError: at 5:4: ...`; a wrapper's text includes the error that it wraps.

    An error in a function that a kernel calls has no message at the call (seen in 3.7.1), only a
    cause: each call is shown, down to the line that is wrong.
    """
    told = f"{type(error).__name__}: {error}".strip()
    cause = error.__cause__
    silent = isinstance(error, CompilationError) and not error.error_message
    return f"{told}\n{error_text(cause)}" if silent and cause is not None else told


def _stages(job: Job) -> CompiledJob:
    backend = make_backend(_target(job.arch))
    parsed = _parsed(backend, dict(job.options))
    language = Language.TRITON if job.stage == "ttir" else Language.GLUON
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed, language)
    metadata: dict[str, Any] = {"target": backend.target, **parsed.__dict__}
    made = _parse(job, _context(backend))
    ptx = ""
    for name in list(stages)[list(stages).index(job.stage) :]:
        made = stages[name](made, metadata)
        if name == "ptx":
            ptx = made = _with_a_date(made)
    return CompiledJob(
        cubin=made,
        ptx=ptx,
        function=metadata["name"],
        num_warps=metadata["num_warps"],
        shared=metadata["shared"],
        global_scratch_size=metadata.get("global_scratch_size") or 0,
        global_scratch_align=metadata.get("global_scratch_align") or 1,
        profile_scratch_size=metadata.get("profile_scratch_size") or 0,
        num_ctas=metadata["num_ctas"],
        cooperative=bool(metadata["launch_cooperative_grid"]),
        pdl=bool(metadata.get("launch_pdl")),
        maps=tma.expected(metadata),
        descriptor_flags=tma.flags(),
    )


def _with_a_date(ptx: str) -> str:
    """Keep ptxas from looking up when a source file was changed, which differs between checkouts.

    It looks for a name without a folder where the build runs, unless the PTX has date and size:
    `.file 1 "ops.py"` becomes `.file 1 "ops.py", 1, 1`. Zeros would be as good as none.
    """
    return re.sub(r'^(\s*\.file\s+\d+ "[^"/]*")$', r"\1, 1, 1", ptx, flags=re.MULTILINE)


def _parse(job: Job, context: Any) -> Any:
    # MLIR's parser reads only files.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"kernel.{job.stage}"
        path.write_text(job.text, encoding="utf-8")
        module = ir.parse_mlir_module(str(path), context)
    # The passes look for it there, and it must outlive the module.
    module.context = context
    return module


def _target(arch: Arch) -> Any:
    return GPUTarget(arch.backend, arch.of_triton, arch.warp_size)


def _context(backend: Any) -> Any:
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    return context


def _parsed(backend: Any, options: Mapping[str, Any]) -> Any:
    parsed = backend.parse_options(settings.with_fusion(options))
    unknown = [name for name in options if name not in parsed.__dict__]
    if unknown:
        arch = Arch.of_target(backend.target)
        raise UnknownOption(f"not a launch option for {arch}: {', '.join(unknown)}")
    return parsed


def _source_class(fn: Any) -> Any:
    if not fn.is_gluon():
        return ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    return GluonASTSource


# File descriptors belong to the whole process, and a worker may run several threads.
_descriptors = threading.Lock()


@contextlib.contextmanager
def _held_back(job: Job) -> Iterator[Any]:
    """Hold back stdout and stderr, and show both if the job succeeds; yields a reader of stderr.

    A failed job repeats stderr in its error and drops stdout, where Triton prints the whole PTX
    if `ptxas` fails. Nothing is held back in the process that made the job, because that would
    hold back its own output.
    """
    if job.process == os.getpid() or not _descriptors.acquire(blocking=False):
        yield lambda: ""
        return
    with contextlib.ExitStack() as stack:
        stack.callback(_descriptors.release)
        out = stack.enter_context(_redirected(sys.stdout, 1))
        err = stack.enter_context(_redirected(sys.stderr, 2, job.log))
        result: list[str] = []

        def said() -> str:
            result.append(err())
            return result[0]

        yield said
        shown = ("", "") if result else (out(), err())
    for stream, text in zip((sys.stdout, sys.stderr), shown, strict=True):
        if text:
            stream.write(text)


@contextlib.contextmanager
def _redirected(stream: TextIO, descriptor: int, path: str = "") -> Iterator[Any]:
    stream.flush()
    with Path(path).open("w+b") if path else tempfile.TemporaryFile() as file:
        kept = os.dup(descriptor)
        os.dup2(file.fileno(), descriptor)

        def read() -> str:
            stream.flush()
            file.seek(0)
            return file.read().decode(errors="replace")

        try:
            yield read
        finally:
            stream.flush()
            os.dup2(kept, descriptor)
            os.close(kept)


# Those that Triton's AMD backend compiles and torch has builds for. It cannot be asked: for others
# it fails in a pass, or makes code that nobody has run.
_AMD = (
    *(0x908, 0x90A, 0x942, 0x950, 0x1030),
    *(0x1100, 0x1101, 0x1102, 0x1103, 0x1150, 0x1151, 0x1200, 0x1201),
)


@functools.cache
def known_archs() -> tuple[Arch, ...]:
    """The architectures that Triton's bundled assemblers support."""
    from triton.backends.nvidia.compiler import get_ptxas

    listed: set[int] = set()
    for tool in {get_ptxas(70).path, get_ptxas(120).path}:
        text = subprocess.check_output([tool, "--help"], text=True)  # noqa: S603  # Triton's
        # From sm_90 on, Triton compiles for the "a" variant, which not every chip has.
        found = {(int(n), suffix) for n, suffix in re.findall(r"'sm_(\d+)(a?)'", text)}
        mine = {n for n, suffix in found if n >= 70 and (n < 90) == (suffix == "")}
        # Triton 3.9 takes the newer one from sm_90 on, 3.8 from sm_100 on.
        listed |= {n for n in mine if get_ptxas(n).path == tool}
    nvidias = (Arch(CUDA, number) for number in sorted(listed))
    return (*nvidias, *(Arch(HIP, number) for number in _AMD if "amd" in backends))
