"""From declared operators to a library on disk: trace, compile, write out, link."""

from __future__ import annotations

import dataclasses
import inspect
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path as Folder
from typing import Any

from ..errors import BadLibraryName, KernelFailed, Undeclared
from ..registry import Entry, registry
from .artifacts import portable_paths
from .artifacts.build_record import make
from .artifacts.fileset import Written, check_writable, write_output
from .artifacts.toolchain import compile_adapter, compile_library
from .codegen import sources
from .codegen.torch_adapter import unadapted
from .frontend.alternatives import implementing, operators, refuse_undeclared
from .frontend.backward_formula import formula_of
from .frontend.c_parameters import merge
from .frontend.expand import expand
from .frontend.implementations import join
from .frontend.source_hash import part_hash, source_hash
from .frontend.torch_schema import schema_arguments, schema_of, schema_returns
from .ir.kernel_request import Request
from .ir.program import (
    Case,
    Image,
    Implementation,
    Kernel,
    Launch,
    Library,
    Op,
    Param,
    ScalarParam,
    TensorParam,
)
from .kernels.archs import parse_archs
from .kernels.compile import compile_all
from .kernels.image_cache import USER_CACHE, Cache
from .kernels.progress import Progress, Silent
from .kernels.workers import default_jobs
from .tracing.autotune_choice import by_table
from .tracing.case_builder import Built, build_case, first_config
from .tracing.launches import Choose

Archs = tuple[int, ...]


@dataclass
class Plan:
    """What a build is going to make: operators with their paths, and kernels to compile."""

    name: str
    ops: list[Op]
    archs: Archs
    requests: dict[str, tuple[Request, Archs]] = field(default_factory=dict)
    # Kernels for sizes beyond 32 bits: one that cannot be compiled is left out.
    spare: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def plan(
    ops: Sequence[Any], archs: Archs, *, name: str | None = None, choose: Choose = first_config
) -> Plan:
    """Trace every declared case of the operators; ops without a declaration are left out."""
    entries = operators(op if isinstance(op, Entry) else registry.get(op) for op in ops)
    parts = {e.name: implementing(e) for e in entries}
    declared = [e for e in entries if any(part.declarations for part in parts[e.name])]
    if not declared:
        names = ", ".join(e.name for e in entries) or "no operator at all"
        raise Undeclared(
            f"nothing to build: none is declared of {names}",
            fix="native.declare(op, x=native.tensor(...), ...) beside the operators",
        )
    made = Plan(name or common_namespace(declared), [], archs)
    check_name(made.name)
    _refuse_namesakes(declared)
    own = {entry.name for entry in declared}
    for entry in declared:
        refuse_undeclared(entry, parts[entry.name])
        op = _plan_op(entry, parts[entry.name], made, choose)
        made.ops.append(dataclasses.replace(op, formula=formula_of(entry, own)))
    return made


def _plan_op(entry: Entry, parts: Sequence[Entry], made: Plan, choose: Choose) -> Op:
    joined = join(entry, parts)
    cases: list[Case] = []
    served = []
    for index, part in enumerate(parts):
        found = expand(part, joined)
        built = [build_case(part, found, case, made.archs, choose) for case in found.cases]
        for one in built:
            _take(one, made)
        made.notes += _refusals(part, built)
        cases += [dataclasses.replace(b.case, implementation=index) for b in built]
        served.append(_implementation(part, parts))
    made.notes += _other_types(entry, joined.params)
    return Op(
        name=entry.own_name,
        torch_name=entry.name,
        location=entry.location,
        params=joined.params,
        outputs=found.outputs,
        cases=tuple(cases),
        doc=inspect.getdoc(entry.fn) or "",
        source_hash=source_hash(entry),
        schema=schema_of(entry),
        arguments=schema_arguments(entry, joined),
        returns=schema_returns(entry),
        implementations=tuple(served),
    )


def _implementation(part: Entry, parts: Sequence[Entry]) -> Implementation:
    shorts = [each.own_name for each in parts]
    own = merge(part.flat(), part.declarations)
    return Implementation(
        name=part.own_name if shorts.count(part.own_name) == 1 else part.name,
        torch_name=part.name,
        location=part.location,
        doc=inspect.getdoc(part.fn) or "",
        source_hash=part_hash(part),
        schema=schema_of(part),
        takes=tuple((p.name, p.doc) for p in own.params if isinstance(p, TensorParam)),
    )


def _refusals(entry: Entry, built: Sequence[Built]) -> list[str]:
    """What the body refuses, once for all cases in which it does so for the same reason."""
    cases: dict[str, list[str]] = {}
    for one in built:
        for why, where in one.refused.items():
            cases.setdefault(why, []).extend(where)
    return [
        f"{entry.name} is not built for {where[0]}"
        + (f", nor in {len(where) - 1} more such cases" if len(where) > 1 else "")
        + f": {why}"
        for why, where in cases.items()
    ]


# In what the JIT passes Python's numbers.
_USUAL = {"fp32", "i32", "i64"}


def _other_types(entry: Entry, params: Sequence[Param]) -> list[str]:
    scalars = [p for p in params if isinstance(p, ScalarParam) and p.dtype not in _USUAL]
    return [
        f"{entry.name}: kernels get {p.name} as {p.dtype}, as declared; the JIT would pass "
        f"{'fp32' if p.dtype.startswith(('fp', 'bf')) else 'i32 or i64'}"
        for p in scalars
    ]


def _take(built: Built, made: Plan) -> None:
    for key, (request, archs) in built.requests.items():
        known = made.requests.get(key, (request, ()))[1]
        every = tuple(a for a in made.archs if a in {*known, *archs})
        made.requests[key] = (request, every)
        if "i64" in request.types:
            made.spare.add(key)
    made.notes += [n for n in built.notes if n not in made.notes]


def compile_plan(
    made: Plan,
    *,
    executor: Executor | None = None,
    jobs: int | None = None,
    cache: Cache | None = USER_CACHE,
    ptx: bool = False,
    progress: Progress | None = None,
) -> Library:
    """Compile a plan's kernels; what comes out is all that is written to disk."""
    progress = progress or Silent()

    def compiled() -> dict[tuple[str, int], Image]:
        return compile_all(
            made.requests.values(),
            executor=executor, jobs=jobs, cache=cache, ptx=ptx, full_paths=False,
            progress=progress,
        )  # fmt: skip

    try:
        images = compiled()
    except KernelFailed as error:
        lost = {key for key, _ in error.failed}
        if not lost or not lost <= made.spare:
            raise
        # The JIT would fail for such sizes as well; all others are served.
        _drop(made, lost, error)
        images = compiled()
    kernels = [_kernel(request, archs, images) for request, archs in made.requests.values()]
    return Library(
        made.name,
        tuple(made.ops),
        tuple(sorted(kernels, key=lambda k: k.key)),
        made.archs,
        tuple((package, version(package)) for package in ("torch", "triton")),
        tuple(made.notes),
    )


def _drop(made: Plan, lost: Iterable[str], error: KernelFailed) -> None:
    for key in lost:
        request, _ = made.requests.pop(key)
        made.notes.append(
            f"{request} does not compile, so sizes beyond 32 bits are not covered: "
            f"{_last_line(str(error))}"
        )
    made.ops[:] = [
        dataclasses.replace(op, cases=tuple(_without(c, set(lost)) for c in op.cases))
        for op in made.ops
    ]


def _without(case: Case, lost: set[str]) -> Case:
    paths = []
    for path in case.paths:
        steps = tuple(
            dataclasses.replace(
                step, variants=tuple(v for v in step.variants if v.kernel not in lost)
            )
            if isinstance(step, Launch)
            else step
            for step in path.steps
        )
        paths.append(dataclasses.replace(path, steps=steps))
    return dataclasses.replace(case, paths=tuple(paths))


def _kernel(request: Request, archs: Archs, images: dict[tuple[str, int], Image]) -> Kernel:
    passed = [n for n, t in request.signature if t != "constexpr"]
    order = [n for n, _ in request.signature]
    divisible = {order[i] for i in request.divisible}
    return Kernel(
        request.key,
        request.name,
        request.location,
        request.types,
        tuple((n, repr(v)) for n, v in request.constants),
        tuple(images[request.key, arch] for arch in archs),
        tuple(i for i, n in enumerate(passed) if n in divisible),
        request.qualified_name,
        tuple((n, repr(v)) for n, v in request.options),
    )


def common_namespace(entries: Sequence[Entry]) -> str:
    """The operators' namespace, where it is one."""
    found = sorted({e.name.partition("::")[0] for e in entries})
    if len(found) > 1:
        raise BadLibraryName(
            f"the operators have {len(found)} namespaces, so the library has no name",
            found=", ".join(found),
            fix="give one: --name NAME",
        )
    return found[0]


# Headers that C and CUDA programs include, and libraries that they link.
_SYSTEM = frozenset(
    [
        "assert",
        "complex",
        "ctype",
        "errno",
        "fenv",
        "float",
        "inttypes",
        "iso646",
        "limits",
        "locale",
        "math",
        "setjmp",
        "signal",
        "stdalign",
        "stdarg",
        "stdatomic",
        "stdbool",
        "stddef",
        "stdint",
        "stdio",
        "stdlib",
        "stdnoreturn",
        "string",
        "strings",
        "tgmath",
        "threads",
        "time",
        "uchar",
        "unistd",
        "wchar",
        "wctype",
        "dlfcn",
        "fcntl",
        "memory",
        "pthread",
        "sched",
        "c",
        "dl",
        "gcc",
        "m",
        "rt",
        "util",
        "cuda",
        "cudart",
        "cublas",
        "cudnn",
        "cufft",
        "nvrtc",
    ]
)


def check_name(name: str) -> None:
    """A library's name begins C functions and names files."""
    if name in _SYSTEM:
        raise BadLibraryName(
            f"{name!r} is a name of the system's: programs that include <{name}.h> or link "
            f"-l{name} would get this library",
            fix=f"another name: --name {name}_ops",
        )
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise BadLibraryName(
            f"{name!r} cannot begin the name of a C function",
            fix="letters, digits and underscores, a letter first: --name NAME",
        )


def _refuse_namesakes(entries: Sequence[Entry]) -> None:
    seen: dict[str, Entry] = {}
    for entry in entries:
        short = entry.own_name
        other = seen.setdefault(short, entry)
        if other is not entry:
            raise BadLibraryName(
                f"two operators would be the C function {short}",
                found=f"{other.name} ({other.location}), {entry.name} ({entry.location})",
                fix="rename one, or build them into two libraries",
            )


def _last_line(text: str) -> str:
    return ([line for line in text.strip().splitlines() if line.strip()] or [""])[-1].strip()


@dataclass(frozen=True)
class Result:
    """A library that was written: its program, its folder, and what became of the files."""

    library: Library
    folder: Folder
    written: Written
    notes: tuple[str, ...] = ()


def build(
    ops: Sequence[Any],
    output: str | Folder,
    *,
    archs: Iterable[str | int] = ("sm_90",),
    name: str | None = None,
    static: bool = False,
    ptx: bool = False,
    sources_only: bool = False,
    torch: bool = False,
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

    Kernels are compiled by `jobs` processes (default: all cores), or by any `executor`; its
    workers need Triton, and neither torch nor the operators' source. With `sources_only` the C is
    written and not compiled. `tuning` is a table that `opforge tune` has made, by which autotuned
    kernels take their configurations. With `torch` there is also `libNAME_torch.so`, which makes
    torch operators of the functions. `read` and `arguments` go into the record by which the
    command sees that nothing has changed.
    """
    check_writable(output)
    choose = by_table(tuning)
    made = plan(ops, parse_archs(str(a) for a in archs), name=name, choose=choose)
    library = compile_plan(
        made, executor=executor, jobs=jobs, cache=cache, ptx=ptx, progress=progress
    )
    files = sources(portable_paths.everywhere(library), torch=torch)
    if torch:
        made.notes += [
            f"{op.name} is not in the torch adapter, because {why}; opforge.load calls it by ctypes"
            for op in library.ops
            if (why := unadapted(op))
        ]
        made.notes += _left_behind(library)
    if not sources_only:
        jobs = jobs or default_jobs()
        files |= _compiled(files, library.name, static=static, torch=torch, jobs=jobs)
    hosts = [one.location.rpartition(":")[0] for op in library.ops for one in op.served_by]
    kernels = [kernel.location.rpartition(":")[0] for kernel in library.kernels]
    # Installed packages' too: an upgrade changes their kernels.
    tables = [] if tuning is None else [str(tuning)]
    files_read = sorted({file for file in (*hosts, *kernels, *tables) if Folder(file).is_file()})
    stamp = make(output, arguments or {}, read or {}, files_read)
    written = write_output(output, files, stamp=stamp, name=library.name)
    return Result(library, Folder(output), written, tuple(made.notes))


def _left_behind(library: Library) -> list[str]:
    """Operators whose backward is more than calls of the library's operators."""
    entries = [(op, registry.find(op.torch_name)) for op in library.ops if not op.formula]
    return [
        f"{op.name}: its backward stays behind, as it does more than call operators of the "
        "library; without the source, going backward through it raises"
        for op, entry in entries
        if entry is not None and entry.registration.definition.backward is not None
    ]


def _compiled(
    files: Mapping[str, bytes], name: str, *, static: bool, torch: bool, jobs: int
) -> dict[str, bytes]:
    """The libraries that the C compiler makes of the sources."""
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
