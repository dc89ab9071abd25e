"""`opforge build`: its arguments and its output. Imports torch only if there is work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadOption, OutputNotWritable
from ..native.artifacts import build_record
from ..native.targets import are_recordings, buildable, is_tree, operators
from ..notebook import counted, size

if TYPE_CHECKING:
    from ..native.build import Result
    from ..native.ir import cases
    from ..native.ir.cases import Case, Launch
    from ..native.ir.interface import Op
    from ..native.ir.kernels import Image
    from ..native.ir.program import Kernel, Library


# What only libraries of operators have.
_OF_OPERATORS = (
    "name", "static", "ptx", "only", "sources_only", "torch", "tvm_ffi", "jax", "depfile", "tuning",
)  # fmt: skip


@dataclass(frozen=True)
class BuildArguments:
    """The command's arguments."""

    targets: tuple[str, ...]
    output: str
    archs: tuple[str, ...]
    name: str | None = None
    static: bool = False
    ptx: bool = False
    jobs: int | None = None
    verbose: bool = False
    only: tuple[str, ...] = ()
    sources_only: bool = False
    torch: bool = False
    tvm_ffi: bool = False
    jax: bool = False
    depfile: str | None = None
    tuning: str | None = None
    dask: str | None = None
    widen: tuple[str, ...] = ()

    @property
    def of_recordings(self) -> bool:
        return are_recordings(self.targets)

    def refuse_unused(self) -> None:
        """Raise for an option that means nothing for these targets."""
        if self.of_recordings:
            unused = [name for name in _OF_OPERATORS if getattr(self, name)]
            whose, others = "operators", "recordings"
        else:
            unused = ["widen"] if self.widen else []
            whose, others = "recordings", "operators"
        if unused:
            option = f"--{unused[0].replace('_', '-')}"
            raise BadOption(f"{option} is for {whose}, not for {others}", fix=f"leave out {option}")

    def deciding(self) -> dict[str, Any]:
        """The arguments that decide the result."""
        others = {"output", "jobs", "verbose", "depfile", "dask"}
        relative = any(not Path(target).is_absolute() for target in self.targets)
        return {name: value for name, value in vars(self).items() if name not in others} | {
            "archs": sorted(self.archs),
            "only": sorted(self.only),
            "folder": str(Path.cwd()) if relative else "",
            # A folder or file that was added or removed shows by its name.
            "folders": [f.name for t in self.targets if is_tree(t) for f in buildable(t)],
        }


@dataclass(frozen=True)
class Done:
    """What the command says, and the library that is there now."""

    said: str
    library: Path


def nothing_to_do(given: BuildArguments) -> Done | None:
    """The last build if it gave the same; None if there is work."""
    if given.verbose:
        return None
    found = build_record.find_unchanged(given.output, given.deciding())
    if found is None:
        return None
    _write_depfile(given, found)
    name = found.parent.name
    said = f"{given.output}: nothing has changed since the last build of {name}"
    return Done(said, _file(given, name))


def make(
    given: BuildArguments, check_name: Callable[[str], None] | None = None, **more: Any
) -> Result:
    """Import the targets and build them; `more` is for the build itself.

    `check_name` raises if it wants another name for the library, before anything is compiled.
    """
    if given.of_recordings:
        from ..recording.command import joined
        from ..serving.build import build as build_recorded

        return build_recorded(
            joined(given.targets),
            given.output,
            archs=given.archs,
            widen=given.widen,
            jobs=given.jobs,
            files=[Path(target) for target in given.targets],
            arguments=given.deciding(),
            **more,
        )
    from ..native.build import build
    from ..registry import registry

    with build_record.watching_imports() as read, _on_its_gpu(given.archs):
        ops = operators(given.targets, given.only)
    spaces = {registry.get(op).name.partition("::")[0] for op in ops}
    # Of several, those of ops without a declaration do not count, which is known later.
    if check_name is not None and (given.name or len(spaces) == 1):
        check_name(given.name or spaces.pop())
    options = (
        "archs", "name", "static", "ptx", "sources_only", "torch", "tvm_ffi", "jax", "jobs",
        "tuning",
    )  # fmt: skip
    return build(
        ops,
        given.output,
        **{option: getattr(given, option) for option in options},
        read=read,
        arguments=given.deciding(),
        **more,
    )


def run(given: BuildArguments, check_name: Callable[[str], None] | None = None) -> Done:
    """Build, and report the result."""
    from ..native.kernels.compile import Progress
    from ..native.kernels.workers import dask_executor
    from ..progress import watching

    progress = Progress(watching("compiling"))
    with dask_executor(given.dask, progress.note) as executor:
        done = make(given, check_name, executor=executor, progress=progress)
    library = done.library
    _write_depfile(given, Path(given.output, build_record.stamp_path(library.name)))
    lines = [f"note: {note}" for note in done.notes]
    if given.verbose:
        lines += _verbose(library) if library.ops else _weights(library)
    images = sum(len(k.images) for k in library.kernels)
    changed = len(done.written.changed)
    of_what = counted(len(library.functions), "kernel")
    if library.ops:
        of_what = f"{library.name}, {counted(len(library.ops), 'operator')}"
    lines.append(
        f"{given.output}: {of_what}, "
        f"{counted(len(library.kernels), 'kernel variant')}, {counted(images, 'image')} for "
        f"{', '.join(map(str, library.archs))}; "
        f"{counted(changed, 'file')} of {changed + len(done.written.unchanged)} changed"
    )
    return Done("\n".join(lines), _file(given, library.name))


def _file(given: BuildArguments, name: str) -> Path:
    return Path(given.output, "lib", f"lib{name}.so")


def listing(given: BuildArguments) -> str:
    """What a build would make, without compiling anything; in full with `-v`."""
    if given.of_recordings:
        from ..recording.command import joined
        from ..recording.command import listing as recorded

        return recorded(joined(given.targets))
    from ..native.plan import plan
    from ..native.tracing.launches import by_table

    with _on_its_gpu(given.archs):
        ops = operators(given.targets, given.only)
    made = plan(
        ops,
        given.archs,
        name=given.name,
        choose=by_table(given.tuning),
    )
    lines = [f"{made.name} for {', '.join(map(str, made.archs))}"]
    for op in sorted(made.ops, key=lambda op: op.name):
        lines.append(f"  {op.name} ({op.location})")
        lines += [f"    {line}" for line in _cases(op, in_full=given.verbose)]
    lines.append(f"  {counted(len(made.requests), 'kernel variant')}")
    if made.notes:
        lines += ["notes:", *(f"- {note}" for note in dict.fromkeys(made.notes))]
    return "\n".join(lines)


def _on_its_gpu(archs: tuple[str, ...]) -> AbstractContextManager[None]:
    """While modules are imported for AMD GPUs alone, answer for the first of them.

    Many choose configurations by `torch.version.hip` where they define a kernel. Of two vendors,
    or of NVIDIA's GPUs, the machine answers.
    """
    from .._compat.driver import standing_in
    from ..arch_names import parse_archs
    from ..gpu_target import gpu_of

    found = parse_archs(archs)
    is_amds = all(arch.is_amd for arch in found)
    return standing_in(gpu_of(found[0])) if is_amds else nullcontext()


def _write_depfile(given: BuildArguments, record: Path) -> None:
    """The files that the build read, as a rule for make, Ninja and CMake, if it has changed."""
    stamp = None if given.depfile is None else build_record.read(record)
    if given.depfile is None or stamp is None:
        return
    root, place = record.resolve().parents[2], Path(given.depfile)
    text = depfile(record, [root / file for file in stamp.read])
    try:
        if not place.is_file() or place.read_text(encoding="utf-8") != text:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputNotWritable(
            f"cannot write the depfile {place}",
            found=error.strerror or str(error),
            fix="choose another path with --depfile",
        ) from error


def depfile(target: Path, files: Iterable[Path]) -> str:
    r"""A rule with one file per line.

    /out/share/ops/build.json: \
      /ops/add/op.py \
      /ops/common.py
    """
    names = sorted({_escaped(file) for file in files})
    return f"{_escaped(target)}: " + "".join(f"\\\n  {name} " for name in names).rstrip() + "\n"


def _escaped(path: Path) -> str:
    # Links are not resolved, because build tools compare names; `..` is.
    text = Path(os.path.normpath(path.absolute())).as_posix()
    return text.replace("$", "$$").replace(" ", "\\ ").replace("#", "\\#")


# Of what a listing shows without `-v`.
_MOST_PATHS, _MOST_GROUPS, _WIDEST = 6, 6, 200


def _cases(op: Op, *, in_full: bool) -> Iterator[str]:
    """Cases, below their implementation if there are several."""
    for index, one in enumerate(op.served_by):
        indent = ""
        if len(op.served_by) > 1:
            yield f"implementation {index}: {one.name} ({one.location})"
            indent = "  "
        cases = [case for case in op.cases if case.implementation == index]
        lines = _in_full(cases, op) if in_full else _in_short(cases, op)
        yield from (f"{indent}{line}" for line in lines)


def _in_full(cases: Sequence[Case], op: Op) -> Iterator[str]:
    from ..native.ir.case_text import describe

    for case in cases:
        yield describe(case, op.params)
        yield from (f"  {line}" for line in _paths(case))


def _in_short(cases: Sequence[Case], op: Op) -> Iterator[str]:
    """Cases with the same paths together, and of many paths only what they launch."""
    from ..native.ir.case_text import describe
    from ..native.ir.cases import Launch

    alike: dict[tuple[str, ...], list[Case]] = {}
    for case in cases:
        alike.setdefault(tuple(_paths(case)), []).append(case)
    for paths, (first, *others) in [*alike.items()][:_MOST_GROUPS]:
        more = f", and {counted(len(others), 'similar case')}" if others else ""
        yield f"{describe(first, op.params)}{more}"
        if len(paths) > _MOST_PATHS:
            steps = [step for path in first.paths for step in path.steps]
            launched = dict.fromkeys(s.kernel_name for s in steps if isinstance(s, Launch))
            yield f"  {len(paths)} paths: {', '.join(launched)}"
        else:
            yield from (f"  {_shortened(line)}" for line in paths)
    rest = [case for alike_ones in [*alike.values()][_MOST_GROUPS:] for case in alike_ones]
    if rest:
        yield f"and {counted(len(rest), 'case')} with other paths; -v shows them"


def _shortened(line: str) -> str:
    """A line without the middle of long conditions."""
    where, colon, did = line.rpartition(": ")
    return line if len(where) <= _WIDEST else f"{where[:_WIDEST]}...{colon}{did}"


def _paths(case: Case) -> Iterator[str]:
    from ..native.ir.case_text import conditions

    for path in case.paths:
        did = path.why.replace("\n", "; ") or ", ".join(_step(s) for s in path.steps)
        where = f"where {conditions(path)}" if path.guards else "always"
        yield f"{where}: {did or 'nothing to launch'}"


def _step(step: Any) -> str:
    if hasattr(step, "kernel_name"):
        return f"{step.kernel_name} in {counted(len(step.variants), 'variant')}"
    return f"{type(step).__name__.lower()} {step.buffer}"


def _verbose(library: Library) -> Iterator[str]:
    """For each variant, when it is used and what the compiler made of it."""
    from ..native.tracing.traced_gpu import allow

    kernels = {kernel.key: kernel for kernel in library.kernels}
    for op in library.ops:
        yield f"{op.name} ({op.location})"
        for where, path, launch in _launches(op):
            yield f"  {where}: {launch.kernel_name}"
            for variant in launch.variants:
                kernel = kernels[variant.kernel]
                yield f"    {_conditions(launch, variant)}"
                # Another path may launch the same kernel on other GPUs.
                images = [image for image in kernel.images if allow(path.guards, image.arch)]
                yield from (f"      {_image(image, kernel)}" for image in images)


def _launches(op: Op) -> Iterator[tuple[str, cases.Path, Launch]]:
    """Each with the calls that lead to it, and their path."""
    from ..native.ir.case_text import conditions, describe
    from ..native.ir.cases import Launch

    several = len(op.served_by) > 1
    for case in op.cases:
        whose = f"{op.served_by[case.implementation].name}: " if several else ""
        for path in case.paths:
            under = f" where {conditions(path)}" if path.guards else ""
            where = f"{whose}{describe(case, op.params)}{under}"
            yield from ((where, path, step) for step in path.steps if isinstance(step, Launch))


def _conditions(launch: Launch, variant: Any) -> str:
    """`x_ptr: *fp16 aligned, n: i32 multiple of 16`."""
    parts = []
    for index, (argument, kind) in enumerate(zip(launch.arguments, variant.types, strict=True)):
        extra = " aligned" if index in variant.aligned else ""
        extra += " multiple of 16" if index in variant.divisible else ""
        parts.append(f"{argument.name}: {kind}{extra}")
    constants = [f"{name}={value}" for name, value in launch.constants]
    return ", ".join([*parts, *constants])


def _image(image: Image, kernel: Kernel) -> str:
    spills = f", {4 * image.spills} bytes spilled" if image.spills else ""
    kind = "hsaco" if image.arch.is_amd else "cubin"
    return (
        f"{image.arch} {kernel.key}: {image.registers} registers{spills}, "
        f"{image.shared} bytes shared, {image.num_warps} warps, {kind} {len(image.cubin)} bytes"
    )


def _weights(library: Library) -> Iterator[str]:
    """A line per jitted function: its bytes on each architecture."""
    kernels = {kernel.key: kernel for kernel in library.kernels}
    for function in library.functions:
        keys = {v.kernel for instance in function.instances for v in instance.variants}
        images = [image for key in keys for image in kernels[key].images]
        sizes = [
            f"{size(sum(i.size for i in images if i.arch == arch))} for {arch}"
            for arch in library.archs
        ]
        yield f"  {function.name}: {counted(len(keys), 'kernel variant')}, {', '.join(sizes)}"
