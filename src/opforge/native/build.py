"""From operators to a library on disk: trace, compile, write, publish.

`serving.build` does the same with a recording in place of traces.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path as Folder
from typing import Any

from .. import _compat
from .._compat.kernels import written_source
from ..arch import Arch
from ..arch_names import parse_archs
from ..errors import BadOption, BuildFailed, last_line
from ..notebook import counted, html_table
from ..records import changed
from ..registry import registry
from .artifacts.build_record import make
from .artifacts.publish import Written, check_writable, write_output
from .artifacts.toolchain import compile_adapter, compile_library
from .codegen import sources
from .codegen.bindings import unadapted, unexported
from .ir.cases import Launch
from .ir.kernel_request import Request
from .ir.kernels import Image
from .ir.places import shortened
from .ir.program import OP_COLUMNS, Archs, Kernel, Library, Plan, op_rows
from .kernels.compile import Progress, compile_all
from .kernels.image_cache import USER_CACHE, Cache, RemoteCache, remote_cache
from .kernels.workers import default_jobs
from .plan import plan
from .tracing.launches import by_table


@dataclass(frozen=True)
class Result:
    """A library on disk: its program, its folder, and which files changed."""

    library: Library
    folder: Folder
    written: Written
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        library = self.library
        archs = ", ".join(map(str, library.archs))
        ops, kernels = counted(len(library.ops), "operator"), len(library.kernels)
        kept = f"{ops}, {counted(kernels, 'kernel variant')} for {archs}"
        return f"<Result: library {library.name} in {self.folder}, with {kept}>"

    def _repr_html_(self) -> str:
        title = f"{self.library.name} in {self.folder}"
        return html_table(title, OP_COLUMNS, op_rows(self.library.ops))


def build(
    ops: Sequence[Any],
    output: str | Folder,
    *,
    archs: str | int | Iterable[str | int] = "sm_90",
    name: str | None = None,
    static: bool = False,
    ptx: bool = False,
    sources_only: bool = False,
    torch: bool = False,
    tvm_ffi: bool = False,
    jax: bool = False,
    jobs: int | None = None,
    executor: Executor | None = None,
    cache: Cache | None = USER_CACHE,
    tuning: str | Folder | None = None,
    progress: Progress | None = None,
    read: Mapping[Folder, str] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Result:
    """Build declared operators into a native library below `output`.

        native.build([silu, rms_norm], "dist", archs=("sm_80", "sm_90"))

    `jobs` processes compile the kernels (default: all cores), or any `executor`, whose workers
    need Triton but neither torch nor the operators' source. `sources_only` writes the C without
    compiling it. `tuning` is a table from `opforge tune` that picks the configurations of
    autotuned kernels. `torch` adds `libNAME_torch.so`, which makes the functions torch operators;
    with `tvm_ffi`, `tvm_ffi.load_module` has them as well, and with `jax` the module `NAME.jax`.
    `read` and `arguments` go into the record from which the command sees that nothing changed.
    """
    check_writable(output)
    if ptx and all(arch.is_amd for arch in parse_archs(archs)):
        raise BadOption("there is no PTX for AMD GPUs", fix="leave it out, or name an NVIDIA GPU")
    remote = None if cache is None else remote_cache()
    choose = by_table(tuning)
    traced = None if progress is None else progress.traced
    made = plan(ops, archs, name=name, choose=choose, traced=traced)
    library = compile_plan(
        made,
        executor=executor,
        jobs=jobs,
        cache=cache,
        remote=remote,
        ptx=ptx,
        progress=progress,
    )
    files = sources(shortened(library), torch=torch, tvm_ffi=tvm_ffi, jax=jax)
    if torch:
        made.notes += [
            f"{op.name} is not in the torch adapter, because {why}; opforge.load calls it by ctypes"
            for op in library.ops
            if op.torch_name and (why := unadapted(op))
        ]
        made.notes += _left_behind(library)
    if tvm_ffi:
        made.notes += [
            f"{op.name} is not a function of tvm-ffi, because {why}"
            for op in library.ops
            if (why := unexported(op))
        ]
    if not sources_only:
        jobs = jobs or default_jobs()
        files |= _compiled(files, library.name, static=static, torch=torch, jobs=jobs)
    hosts = [one.location.rpartition(":")[0] for op in library.ops for one in op.served_by]
    tables = [] if tuning is None else [str(tuning)]
    return publish(
        made,
        library,
        files,
        output,
        imported=read or {},
        others=[*hosts, *tables],
        arguments=arguments,
    )


def publish(
    made: Plan,
    library: Library,
    files: Mapping[str, bytes],
    output: str | Folder,
    *,
    imported: Mapping[Folder, str],
    others: Iterable[str],
    arguments: Mapping[str, Any] | None,
) -> Result:
    """Write a build's files and its record: which files it read, `others` beside its kernels'."""
    # Files of installed packages too, because an upgrade changes their kernels.
    functions = {id(request.fn): request.fn for request, _ in made.requests.values()}
    hashes = [_compat.kernel_hash.hash_or_unique(fn) for fn in functions.values()]
    kernels = [file for hashed in hashes for file in hashed.files]
    kernels += [kernel.location.rpartition(":")[0] for kernel in library.kernels]
    files_read = sorted({file for file in (*kernels, *others) if Folder(file).is_file()})
    stamp = make(output, arguments or {}, imported, files_read)
    written = write_output(output, files, stamp=stamp, name=library.name)
    return Result(library, Folder(output), written, tuple(made.notes))


def compile_plan(
    made: Plan,
    *,
    executor: Executor | None = None,
    jobs: int | None = None,
    cache: Cache | None = USER_CACHE,
    remote: RemoteCache | None = None,
    ptx: bool = False,
    progress: Progress | None = None,
    drop: Callable[[Plan, BuildFailed], None] | None = None,
) -> Library:
    """Compile a plan's kernels into the library that is written to disk.

    `drop` takes what does not compile out of the plan, or raises the error.
    """

    def compiled() -> dict[tuple[str, Arch], Image]:
        return compile_all(
            made.requests.values(),
            executor=executor, jobs=jobs, cache=cache, remote=remote, ptx=ptx,
            progress=progress, launched_by=_launched_by(made),
        )  # fmt: skip

    try:
        images = compiled()
    except BuildFailed as error:
        (drop or _drop_spare)(made, error)
        images = compiled()
    kernels = [_kernel(request, archs, images) for request, archs in made.requests.values()]
    packages = ("torch", "triton") if made.ops else ("triton",)
    return Library(
        made.name,
        tuple(made.ops),
        tuple(sorted(kernels, key=lambda k: k.key)),
        made.archs,
        tuple((package, version(package)) for package in packages),
        tuple(sorted(_sources(made))),
        tuple(made.notes),
        tuple(made.functions),
        made.settings,
    )


def _launched_by(made: Plan) -> dict[str, list[str]]:
    """By key of a kernel, the operators that launch it and where: `mylib::silu (ops.py:12)`."""
    found: dict[str, dict[str, None]] = {}
    for op in made.ops:
        steps = (step for case in op.cases for path in case.paths for step in path.steps)
        for step in steps:
            if isinstance(step, Launch):
                who = f"{op.torch_name or op.name} ({step.location})"
                for variant in step.variants:
                    found.setdefault(variant.kernel, {})[who] = None
    return {key: list(who) for key, who in found.items()}


def _sources(made: Plan) -> set[tuple[str, str]]:
    """Of the kernels that opforge wrote."""
    found = (written_source(request.fn) for request, _ in made.requests.values())
    return {one for one in found if one is not None}


def _drop_spare(made: Plan, error: BuildFailed) -> None:
    """The JIT would fail for such sizes too; all others are covered."""
    lost = {key for key, _ in error.failed}
    if not lost or not lost <= made.spare:
        raise error

    def without(launch: Launch) -> Launch:
        kept = tuple(v for v in launch.variants if v.kernel not in lost)
        if not kept:
            # A kernel may have 64 bits at all sizes, by its annotations.
            raise error
        return dataclasses.replace(launch, variants=kept)

    made.ops[:] = changed(tuple(made.ops), Launch, without)
    why = last_line(error)
    for key in lost:
        request, _ = made.requests.pop(key)
        made.notes.append(
            f"{request} does not compile, so sizes beyond 32 bits are not covered: {why}"
        )


def _kernel(request: Request, archs: Archs, images: dict[tuple[str, Arch], Image]) -> Kernel:
    passed = [i for i, (_, type_) in enumerate(request.signature) if type_ != "constexpr"]
    return Kernel(
        request.key,
        request.name,
        request.location,
        request.types,
        tuple((n, repr(v)) for n, v in request.constants),
        tuple(images[request.key, arch] for arch in archs),
        tuple(i for i, position in enumerate(passed) if position in request.divisible),
        request.qualified_name,
        tuple((n, repr(v)) for n, v in request.options),
    )


def _left_behind(library: Library) -> list[str]:
    """Operators whose backward stays with the source, and why."""
    entries = [(op, registry.find(op.torch_name)) for op in library.ops if not op.formula]
    return [
        f"{op.name}: the library does not carry its backward, which does more than call the "
        "library's operators; without the source, a backward pass through it raises"
        for op, entry in entries
        if entry is not None and entry.registration.definition.backward is not None
    ]


def _compiled(
    files: Mapping[str, bytes], name: str, *, static: bool, torch: bool, jobs: int
) -> dict[str, bytes]:
    """The compiled libraries, by path."""
    with tempfile.TemporaryDirectory(prefix="opforge-build-") as temporary:
        folder = Folder(temporary)
        for path, content in files.items():
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        made = compile_library(folder, name, static=static, jobs=jobs)
        if torch:
            made.append(compile_adapter(folder, name))
        return {file.relative_to(folder).as_posix(): file.read_bytes() for file in made}
