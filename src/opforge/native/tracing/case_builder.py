"""Builds a case of an op with all its paths: traces, explores, specializes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from ... import _compat
from ..._compat.host_caches import HostCaches
from ..._compat.tracing import Traced
from ...arch import Arch
from ...errors import BadDeclaration, OpforgeError, UnsupportedBody, WrongResult, first_line
from ...notebook import counted
from ...registry import Entry
from ..frontend.expand import Declared
from ..ir.abi import VENDOR, is_attribute
from ..ir.case_text import conditions, describe
from ..ir.cases import Allocate, Case, Fill, Guard, Launch, Output, Path, Step
from ..ir.dtypes import ALIASES
from ..ir.expr import Expr, Number, Term, Var, text_of_all, variables
from ..ir.interface import Param, ScalarParam
from ..ir.kernel_request import Request, Requests, want
from ..ir.places import Told, shortened, told
from ..symbolic.algebra import Algebra
from ..symbolic.solve import MOST, TooManyPaths, VarRange, deciding, explore, implies
from ..symbolic.symint import MANY, MOST_ON_A_PATH, NotConstant, TooManyBranches, term_of
from . import traced_gpu
from .launches import (
    UNDER_A_CHECK,
    Choose,
    Pointed,
    Specializer,
    TracedLaunch,
    first_config,
)
from .recorder import Buffer, Filled
from .tracer import Tracer, Walk, first_values, many_traces, repeated_walk
from .views import is_dense, same

Built = TypeVar("Built")

# Of so many paths that cannot be built the error has the conditions.
_MOST_WAYS = 4
_UNSOLVED = Path((), refused="opforge found no sizes that lead there, so it was not traced")
# Once the case cannot be built, so many more paths are traced to list what else is in the way.
_MOST_WASTED = 64


@dataclass
class BuiltCase:
    """A case with its paths, and the kernels they need with the architectures of each."""

    case: Case
    requests: Requests = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    # The inputs that the body itself refuses, by reason.
    refused: dict[Told, list[str]] = field(default_factory=dict)


def build_case(
    entry: Entry,
    declared: Declared,
    case: Case,
    archs: tuple[Arch, ...],
    choose: Choose = first_config,
    *,
    caches: HostCaches | None = None,
    on_path: Callable[[], None] = lambda: None,
) -> BuiltCase:
    """Trace every path of a case, and call `on_path` after each.

    Each vendor's architectures are traced by themselves, because host code asks for the vendor in
    ways that leave no guard, `torch.version.hip` for instance. Cases of one op may share `caches`:
    to find those that its body reaches takes 20 ms.
    """
    with located(entry):
        found = {
            vendor: _build_case(
                Tracer(entry, declared, case, tuple(some), choose, caches=caches), on_path
            )
            for vendor, some in itertools.groupby(sorted(archs), lambda arch: arch.vendor)
        }
    return found.popitem()[1] if len(found) == 1 else for_all_vendors(found)


@contextlib.contextmanager
def located(entry: Entry) -> Iterator[None]:
    """Errors get the op and its `file:line`."""
    try:
        yield
    except OpforgeError as error:
        error.locate(entry.name, entry.location)
        raise


def _build_case(tracer: Tracer, on_path: Callable[[], None]) -> BuiltCase:
    maker = _Maker(tracer)
    case, archs, params = tracer.case, tracer.archs, tracer.declared.params
    described = describe(case, params)
    wasted = 0

    def trace(values: Any) -> tuple[tuple[Guard, ...], Path]:
        nonlocal wasted
        wasted += bool(maker.offences)
        if wasted > _MOST_WASTED:
            raise TooManyPaths
        walk = repeated_walk(tracer, values)
        path = maker.path(walk)
        walk.end()
        on_path()
        return tuple(walk.guards), path

    var_ranges = tracer.var_ranges
    given = [traced_gpu.is_one_of(archs)]
    try:
        with many_traces():
            found = explore(trace, _start(tracer), var_ranges, _UNSOLVED, given)
    except NotConstant as error:
        also = dict.fromkeys([*maker.offences, *error.also])
        raise needs_bound(error, list(also)) from None
    except TooManyPaths:
        _refuse_offences(described, "", list(maker.offences))
        what = f"the body has more than {MOST} paths, because it branches on sizes"
        fix = "fix some sizes or bound them: dims={'n': (1, 8192)}"
        raise UnsupportedBody(what, fix=fix) from None
    paths = tuple(dataclasses.replace(path, guards=guards) for guards, path in found)
    if archs[0].is_amd:
        # NVIDIA's, which were traced first, may have been fine.
        described += f", on {', '.join(map(str, archs))}"
    under = _leading_to(maker.offences, paths, var_ranges) if maker.offences else ""
    _refuse_offences(described, under, list(maker.offences))
    _refuse_empty(described, paths, maker.raised)
    _refuse_idle(tracer.declared, case, paths)
    built = BuiltCase(dataclasses.replace(case, paths=paths), notes=[*tracer.notes, *maker.notes])
    for path in paths:
        maker.collect(path, built.requests)
        if path.refused:
            why = Told(path.why, shortened(path).why)
            built.refused.setdefault(why, []).append(f"{described} where {conditions(path)}")
    return built


def _start(tracer: Tracer) -> dict[str, Number]:
    """The values of the first trace."""
    return {
        **first_values(tracer.case, tracer.var_ranges),
        **traced_gpu.values(tracer.archs[0]),
    }


def for_all_vendors(found: Mapping[int, BuiltCase]) -> BuiltCase:
    """One case of what each vendor's trace found; paths are guarded by the vendor if they differ.

    Most bodies do not ask, and then there is one set of paths, with kernels for both.
    """
    first, *others = found.values()
    paths = first.case.paths
    if any(one.case.paths != paths for one in others):
        paths = tuple(
            dataclasses.replace(path, guards=(is_of(vendor), *path.guards))
            for vendor, one in found.items()
            for path in one.case.paths
        )
    joined = BuiltCase(dataclasses.replace(first.case, paths=paths))
    for one in found.values():
        joined.notes += [note for note in one.notes if note not in joined.notes]
        for request, archs in one.requests.values():
            want(joined.requests, request, archs)
        for why, where in one.refused.items():
            known = joined.refused.setdefault(why, [])
            known += [place for place in where if place not in known]
    return joined


def is_of(vendor: int) -> Guard:
    """That the device is this vendor's."""
    return Guard(Expr("==", (Var(VENDOR), vendor)))


def first_notes(
    entry: Entry,
    declared: Declared,
    case: Case,
    archs: tuple[Arch, ...],
    choose: Choose = first_config,
    *,
    caches: HostCaches | None = None,
) -> list[str]:
    """The notes of one trace of a case, with sizes that are like no others.

    Raises what a build would raise of that trace.
    """
    tracer, walk = first_walk(entry, declared, case, archs, choose, caches=caches)
    with located(entry):
        _refuse_offences(describe(case, declared.params), "", walk.offences)
    if not walk.refused:
        return tracer.notes
    # The body refuses these sizes, which says nothing about others.
    return build_case(entry, declared, case, archs, choose, caches=caches).notes


def first_walk(
    entry: Entry,
    declared: Declared,
    case: Case,
    archs: tuple[Arch, ...],
    choose: Choose = first_config,
    *,
    caches: HostCaches | None = None,
) -> tuple[Tracer, Walk]:
    """One trace of a case, which has ended."""
    tracer = Tracer(entry, declared, case, archs, choose, caches=caches)
    with located(entry):
        try:
            walk = tracer.walk(_start(tracer))
        except NotConstant as error:
            raise needs_bound(error, error.also) from None
    walk.end()
    return tracer, walk


class _Maker:
    """Turns what traces did into program paths."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer, self.entry, self.declared = tracer, tracer.entry, tracer.declared
        self.notes: list[str] = []
        # Every call on any path that a library cannot make, once each.
        self.offences: dict[str, None] = {}
        # The reasons of paths on which the body raises.
        self.raised: set[str] = set()
        self.requests: dict[str, Request] = {}
        self.scalars = {p.name: p.dtype for p in self.declared.params if isinstance(p, ScalarParam)}

    def path(self, walk: Walk) -> Path:
        if walk.refused:
            self.offences |= dict.fromkeys(walk.offences)
            self.raised |= {walk.refusal.why} if walk.raised else set()
            return walk.refusal
        # The path's guards narrow the ranges of its sizes.
        algebra = Algebra(self.tracer.ranges, self.tracer.multiples)
        for guard in walk.guards:
            algebra.narrow(guard.condition)
        names: dict[Buffer, str] = {}
        outputs: list[Output | None] = []
        for name, tensor in zip(self.declared.outputs, walk.outputs, strict=True):
            why = _unfit(name, tensor, names, walk.guards)
            if why:
                return Path((), refused=why)
            made = None if tensor is None else _output(tensor)
            why = "" if made is None else self._unlike_declared(name, made, algebra)
            if why:
                return Path((), refused=why)
            outputs.append(made)
            if tensor is not None:
                names[_buffer(tensor)] = name
            if tensor is not None and made is not None and made.strided:
                outputs[-1] = self._as_launched(name, made, _buffer(tensor), walk)
        specializer = Specializer(algebra, self.scalars)
        steps: list[Step] = []
        for step in walk.steps:
            steps += self._step(step, specializer, names)
        return Path((), tuple(outputs), tuple(steps))

    def _as_launched(self, name: str, made: Output, buffer: Buffer, walk: Walk) -> Output:
        """The output of any strides only if every kernel that has it is told all of them.

        One that is not, `block[grid](x, out, n)`, writes as if the output were compact.
        """
        chosen = _chosen_strides(self.tracer.case, name)
        chosen -= _fixed_by(walk.guards, chosen)
        for step in walk.steps:
            given = step.arguments.values() if isinstance(step, TracedLaunch) else ()
            if any(isinstance(value, Pointed) and value.memory is buffer for value in given):
                numbers = [term_of(value) for value in given if isinstance(value, torch.SymInt)]
                if not chosen <= {v.name for number in numbers for v in variables(number)}:
                    return dataclasses.replace(made, strided=False)
        return made

    def _unlike_declared(self, name: str, made: Output, algebra: Algebra) -> str:
        """Why callers cannot choose the strides of an output; raises if it is not as declared."""
        returns = self.tracer.case.returns
        chosen = {v for t in returns for v in _chosen_strides(self.tracer.case, t.param)}
        if any(v.name in chosen for t in (*made.shape, *made.strides) for v in variables(t)):
            return f"the shape of output {name} depends on the strides of an output"
        said = next((t for t in returns if t.param == name), None)
        if said is None:
            return ""
        alike = made.dtype == said.dtype and len(made.shape) == len(said.shape)
        # A name that no parameter has stands for whatever the body computes.
        alike = alike and all(
            algebra.compare("==", size, wanted) == 1
            for size, wanted in zip(made.shape, said.shape, strict=True)
            if not isinstance(wanted, Var) or wanted.name in self.tracer.ranges
        )
        if not alike:
            raise UnsupportedBody(
                f"the body returns a tensor as {name} that differs from its declaration",
                found=f"{_shown(made.dtype, made.shape)}, declared as "
                f"{_shown(said.dtype, said.shape)}",
                fix="correct returns= of native.declare; a name that no parameter has stands for "
                "a size that the body computes",
            )
        if said.strides is not None and not made.strided:
            return f"which allocation becomes output {name} depends on its strides"
        return ""

    def _step(self, step: Any, specializer: Specializer, names: dict[Buffer, str]) -> list[Step]:
        if isinstance(step, Filled):
            refuse_fill(self.entry, step)
            allocated = _allocated(step.buffer, names)
            bits, width = pattern(step.value, step.dtype), step.dtype.itemsize
            return [*allocated, Fill(names[step.buffer], step.offset, step.count, width, bits)]
        assert isinstance(step, TracedLaunch)
        made: list[Step] = []
        for value in step.arguments.values():
            if isinstance(value, Pointed):
                made += _allocated(value.memory, names)
        config = step.config
        if config is not None and config.count > 1 and config.why:
            name = _compat.kernels.kernel_name(step.fn)
            note = (
                f"{name} has {config.count} autotuning configurations; {config.why} the "
                f"library uses number {config.index}: {config.text}"
            )
            self._note(note)
        launch, requests = specializer.launch(step, names)
        self.requests |= {r.key: r for r in requests}
        # Variants differ in types and alignment, not in what they write.
        self._note(refuse_launch(self.entry, step, requests[0], self.tracer.archs[0]))
        return [*made, launch]

    def _note(self, text: str) -> None:
        if text and text not in self.notes:
            self.notes.append(text)

    def collect(self, path: Path, into: Requests) -> None:
        """The kernels of a path, for the architectures that its guards allow."""
        archs = tuple(a for a in self.tracer.archs if traced_gpu.allow(path.guards, a))
        for step in path.steps:
            if isinstance(step, Launch):
                for variant in step.variants:
                    want(into, self.requests[variant.kernel], archs)


def _chosen_strides(case: Case, output: str) -> set[str]:
    """The variables for the strides that callers choose for an output."""
    said = [tensor for tensor in case.returns if tensor.param == output]
    return {v.name for tensor in said for s in tensor.strides or () for v in variables(s)}


def _fixed_by(guards: Sequence[Guard], chosen: set[str]) -> set[str]:
    """The strides that a path's guards leave one value: `out.stride[1] == 1`.

    An equation of two strides, `n * out.stride[1] == out.stride[0]`, leaves both open.
    """
    found: set[str] = set()
    for guard in guards:
        parts = list(_parts(guard.condition))
        if not any(part.op in {"not", "!="} for part in parts):
            for part in parts:
                named = {v.name for v in variables(part)} & chosen if part.op == "==" else set()
                found |= named if len(named) == 1 else set()
    return found


def _parts(term: Term) -> Iterator[Expr]:
    if isinstance(term, Expr):
        yield term
        for part in term.args:
            yield from _parts(part)


def _refuse_idle(declared: Declared, case: Case, paths: tuple[Path, ...]) -> None:
    """Refuse a declaration that lets callers choose strides which no kernel is told."""
    for number, name in enumerate(declared.outputs):
        made = [path.outputs[number] for path in paths if not path.refused]
        if _chosen_strides(case, name) and not any(o is not None and o.strided for o in made):
            raise UnsupportedBody(
                f"output {name} is declared as strided, but its kernels are not told the strides",
                found=f"no launch takes {name}.stride() of every dimension",
                fix="pass out.stride(0), out.stride(1), ... to each kernel that writes the output, "
                "or leave layout='strided' out",
            )


def _buffer(tensor: Traced) -> Buffer:
    assert isinstance(tensor.memory, Buffer)
    return tensor.memory


def _allocated(buffer: Buffer, names: dict[Buffer, str]) -> list[Step]:
    """Allocate workspace at first use; the caller brings parameters and outputs."""
    if buffer in names:
        return []
    if not buffer.allocated:
        names[buffer] = buffer.name
        return []
    names[buffer] = f"workspace{sum(b.allocated for b in names)}"
    itemsize = buffer.dtype.itemsize
    return [Allocate(names[buffer], Algebra({}).mul(buffer.count, itemsize))]


def _unfit(name: str, tensor: Traced | None, names: dict[Buffer, str], guards: list[Guard]) -> str:
    """Why the caller cannot provide the memory of an output; empty if it can."""
    if tensor is None:
        return ""
    buffer = _buffer(tensor)
    if not buffer.allocated:
        return f"output {name} is the parameter {buffer.name}; list it in mutates_args instead"
    if buffer in names:
        return f"output {name} shares its memory with {names[buffer]}"
    if buffer.strided:
        return _unfit_strided(name, tensor, buffer)
    count = term_of(math.prod(tensor.sizes))
    equal = count == buffer.count or any(
        isinstance(g.condition, Expr)
        and g.condition.op == "=="
        and set(g.condition.args) == {count, buffer.count}
        for g in guards
    )
    if not (same(tensor.offset, 0) and equal):
        return f"output {name} is only part of a tensor that the body allocates"
    if not (_is_as_allocated(tensor, buffer) or is_dense(tensor)):
        # As many elements as the allocation has, but some of them several times.
        return f"output {name} is an expanded or overlapping view; return a copy: .contiguous()"
    return ""


def _is_as_allocated(tensor: Traced, buffer: Buffer) -> bool:
    return len(tensor.sizes) == len(buffer.sizes) and all(
        map(same, (*tensor.sizes, *tensor.strides), (*buffer.sizes, *buffer.strides))
    )


def _unfit_strided(name: str, tensor: Traced, buffer: Buffer) -> str:
    if _is_as_allocated(tensor, buffer) and same(tensor.offset, 0):
        return ""
    return f"output {name} is declared as strided, but the body returns a view of what it allocates"


def _output(tensor: Traced) -> Output:
    dtype = ALIASES[str(tensor.dtype).removeprefix("torch.")]
    buffer = _buffer(tensor)
    strides = buffer.own if buffer.strided else tensor.strides
    shape = tuple(map(term_of, tensor.sizes))
    return Output(dtype, shape, tuple(map(term_of, strides)), buffer.strided)


def _shown(dtype: str, shape: tuple[Term, ...]) -> str:
    return f"{dtype} [{', '.join(map(str, shape))}]"


def pattern(value: float, dtype: torch.dtype) -> int:
    """The bits of a constant in memory: `pattern(1.0, torch.float16)` -> 0x3C00."""
    unsigned = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    if dtype is torch.uint64:
        # torch.tensor takes neither negative numbers nor floats for it.
        value = int(value) % (1 << 64)
    bits = int(torch.tensor(value, dtype=dtype).view(unsigned).item())
    return bits % (1 << 8 * dtype.itemsize)


def _leading_to(
    offences: Container[str], paths: tuple[Path, ...], var_ranges: Mapping[str, VarRange]
) -> str:
    """The conditions on sizes under which the body makes calls that a library cannot make."""
    ways = [p for p in paths if p.refused and all(o in offences for o in p.refused.splitlines())]
    others = [[g.condition for g in p.guards] for p in paths if not p.refused]
    found: list[list[Term]] = []
    for path in ways[:_MOST_WAYS]:
        one = deciding([g.condition for g in path.guards], others, var_ranges)
        if not any(implies(one, other, var_ranges) for other in found):
            found = [other for other in found if not implies(other, one, var_ranges)]
            found.append(one)
    return " or ".join(text_of_all(conditions) for conditions in found)


def _refuse_offences(described: str, under: str, offences: list[str]) -> None:
    """A call that a library cannot make is an error, even if only some sizes lead to it."""
    if not offences:
        return
    raise UnsupportedBody(
        f"it cannot be built for {described}" + (f" where {under}" if under else ""),
        found="\n    ".join(offences),
        fix=f"{HOLDS}, declare inputs that do not lead there (a contiguous layout, "
        "bounds on sizes), or package the model: opforge.package",
    )


def _refuse_empty(described: str, paths: tuple[Path, ...], raised: set[str]) -> None:
    """A case that cannot be built at all is an error; so is one that writes nothing."""
    if all(p.refused for p in paths):
        reasons = list(dict.fromkeys(p.why for p in paths))
        fix = f"{HOLDS}, or package the model: opforge.package"
        if raised >= set(reasons):
            fix = "correct the body, or declare inputs that it takes"
        elif all(UNDER_A_CHECK in reason for reason in reasons):
            fix = "make that check in the body, or build for other GPUs with --arch"
        raise UnsupportedBody(
            f"it cannot be built for {described}",
            found="\n    ".join(r for one in reasons for r in one.splitlines()),
            fix=fix,
        )
    if not any(isinstance(s, Launch | Fill) for p in paths for s in p.steps):
        what = f"tracing found neither a kernel launch nor a torch call for {described}"
        fix = (
            "declare ops that launch Triton kernels or make the torch calls that "
            "docs/how-to/native/torch-calls.md lists; package others: opforge.package"
        )
        raise UnsupportedBody(what, fix=fix)


# The error for a number that must be a constant: which sizes need a bound, and which would do.


HOLDS = (
    "a native library can hold launches and the torch calls that docs/how-to/native/torch-calls.md "
    "lists; move the rest into a kernel"
)
# The largest bound that is offered.
_USUAL = 8192
# TMA's, and what is offered for blocks.
_LARGEST_BLOCK = 256
_BLOCKS = [64, 128]


def needs_bound(error: NotConstant, also: Sequence[str] = ()) -> BadDeclaration:
    """Names the sizes that lack a bound, not others in the same term; `also` is more to list."""
    names = list(dict.fromkeys(v.name for v in variables(error.term)))
    sizes = [name for name in names if not is_attribute(name)] or names
    lacking = [name for name in sizes if math.isinf(error.ranges[name][1])] or sizes
    floats = [v.name for v in variables(error.term) if v.is_float]
    strides = [name for name in lacking if ".stride[" in name]
    found = f"{'launched' if error.purpose else 'used'} at {error.location}"
    if isinstance(error, TooManyBranches):
        what, found, fix = _loop(error, lacking)
    elif error.bucket:
        what = f"next_power_of_2({error.term}) is unbounded, so {error.purpose or 'it'} would need "
        what += "infinitely many kernels"
        high = _LARGEST_BLOCK if error.purpose else _USUAL
        fix = f"bound {_joined(lacking)}: {_dims(lacking, (1, high))}"
    elif floats:
        what = f"{error.term} must be a constant, but it is a float that could have any value"
        fix = (
            f"declare its values: {floats[0]}=native.choice(0.5, 1.0), or remove what asks for a "
            "plain number: tl.constexpr in the kernel, float() or int() in the body"
        )
        lacking = []
    else:
        what = (
            f"{error.term} must be a constant, for "
            f"{error.purpose or 'a constexpr of a kernel or for Python'}, and each value would "
            "need its own kernels"
        )
        asked = [name for name in names if is_attribute(name)]
        fix = _of_gpu(asked) if asked else _of_sizes(error, lacking)
        lacking = [] if asked else lacking
    if strides:
        tensor = strides[0].partition(".")[0]
        fix = f"pass {strides[0]} to the kernel as a number, or declare {tensor} with "
        fix += "layout='contiguous'"
        lacking = []
    unnamed = [name for name in lacking if not _declared(name)]
    if unnamed:
        fix += f", and give {_joined(unnamed)} a name in the declared shape"
    fix = f"{error.instead}, or {fix}" if error.instead else fix
    if also:
        found = "\n    ".join([found, *also])
        fix += f"; {HOLDS}"
    return BadDeclaration(what, found=found, fix=fix)


def _of_sizes(error: NotConstant, names: Sequence[str]) -> str:
    if error.purpose:
        # Bounds do not help: of the sizes between them few are powers of two.
        fix = "give the block a constant size, such as that of a tl.constexpr, or declare the "
        return f"{fix}values of {_joined(names)}: {_dims(names, _BLOCKS)}"
    fix = f"declare the values of {_joined(names)}: {_dims(names, [1024, 4096])}"
    high = _enough(error, names)
    fix += f", or bound {'it' if len(names) == 1 else 'them'}" if high else ""
    return fix + (f": {_dims(names, (1, high))}" if high else "")


def _of_gpu(asked: Sequence[str]) -> str:
    """No list of sizes helps, because the GPU's number may be any."""
    fix = "remove tl.constexpr in the kernel, or put a number of your own in place of "
    return f"{fix}{_joined(asked)}, which differs from GPU to GPU"


def _loop(error: TooManyBranches, names: Sequence[str]) -> tuple[str, str, str]:
    """What, found and fix. The values of this path are too high as a bound, if only just."""
    highest = max(int(error.values.get(name, _USUAL)) for name in names)
    bound = (1, min(_USUAL, 1 << max(highest.bit_length() - 1, 1)))
    if any(math.isinf(error.ranges[name][1]) for name in names):
        has = "has" if len(names) == 1 else "have"
        what = f"a loop may go round any number of times, because {_joined(names)} {has} no upper "
        return (
            f"{what}bound",
            f"it branches again and again at {error.location}",
            f"bound {_joined(names)}: {_dims(names, bound)}",
        )
    return (
        f"a path has more than {MOST_ON_A_PATH} branches on sizes",
        f"the last at {error.location}",
        f"bound {_joined(names)} lower: {_dims(names, bound)}",
    )


def _enough(error: NotConstant, names: Sequence[str]) -> int:
    """The highest upper end at which the term has few enough values; 0 if none does."""
    high = _USUAL
    while high > 1:
        algebra = Algebra({**error.ranges, **dict.fromkeys(names, (1, high))})
        low, most = algebra.range(error.term)
        if most - low <= MANY:
            return high
        high //= 2
    return 0


def _joined(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _declared(name: str) -> str:
    """`n` -> "n", `s[0]` of "*s" -> "s", and `x.shape[0]` of "..." has no name."""
    shown = name.partition("[")[0]
    return shown if shown.isidentifier() else ""


def _dims(names: Sequence[str], bound: tuple[int, int] | list[int]) -> str:
    """`dims={'n': (1, 8192)}`; a size without a name is called n, or m, ..."""
    free = iter("nmkhpqr")
    shown = dict.fromkeys(_declared(name) or next(free, "n") for name in names)
    return f"dims={{{', '.join(f'{name!r}: {bound}' for name in shown)}}}"


# Writes to a parameter that `mutates_args` does not name: C callers pass it as const.


def refuse_fill(entry: Entry, filled: Filled) -> None:
    """Raise if `x.zero_()` or the like changes a parameter that only is read."""
    if filled.buffer.name in _only_read(entry, [filled.buffer]):
        raise _error(entry, filled.buffer.name, "an in-place operation")


def refuse_launch(entry: Entry, called: TracedLaunch, request: Request, arch: Arch) -> str:
    """Raise if a kernel writes to a parameter that only is read; a note if that cannot be told."""
    given = {n: v.memory for n, v in called.arguments.items() if isinstance(v, Pointed)}
    only_read = _only_read(entry, given.values())
    if not only_read:
        return ""
    kernel = f"kernel {request.name} ({request.location})"
    if called.writes is None:
        written, why = _written(_Keyed(request.key, arch, request))
    else:
        written, why = called.writes, ""
    if why:
        return told(
            lambda at: (
                f"{entry.name}: it cannot be told what kernel {request.name} "
                f"({at(request.location)}) writes ({why}); make sure that it does not write to "
                f"{', '.join(only_read)}"
            )
        )
    for name, memory in given.items():
        if name in written and memory.name in only_read and not memory.allocated:
            raise _error(entry, memory.name, kernel, f"launched at {called.location}")
    return ""


def _only_read(entry: Entry, memories: Iterable[Buffer]) -> list[str]:
    """The parameters among some memory, by name, that `mutates_args` does not name."""
    mutated = {argument.name for argument in entry.flat().mutated}
    names = dict.fromkeys(memory.name for memory in memories if not memory.allocated)
    return [name for name in names if name not in mutated]


def _error(entry: Entry, name: str, writer: str, found: str = "") -> WrongResult:
    flat = entry.flat()
    path = next((a.path for a in flat.arguments if a.name == name), name)
    declared = sorted({path, *(a.path for a in flat.mutated)})
    return WrongResult(
        f"{writer} writes to {path!r}, which mutates_args does not name",
        parameter=path,
        found=found or None,
        fix=f"mutates_args={declared}, or write to a tensor that the body allocates",
    )


@dataclass(frozen=True)
class _Keyed:
    """A request by its key, because constants need not be hashable."""

    key: str
    arch: Arch
    request: Request = field(compare=False)


@functools.lru_cache(maxsize=4096)
def _written(keyed: _Keyed) -> tuple[frozenset[str], str]:
    """The kernel's parameters that it writes to, or why that is not known."""
    request = keyed.request
    try:
        variant = _compat.compiling.Variant(
            request.fn,
            keyed.arch,
            dict(request.signature),
            dict(request.constants),
            dict(request.options),
        )
        written = _compat.pointer_writes.written_pointers(variant)
    except _compat.pointer_writes.UnknownWrites as error:
        return frozenset(), first_line(error)
    except Exception:  # noqa: BLE001  # the compiler raises of any kind, and says it when it compiles
        return frozenset(), ""
    return written, ""


# Errors about the cases of an operator, and about several operators, put together into one.


def all_of(
    entry: Entry, params: Sequence[Param], cases: Sequence[Case], build: Callable[[Case], Built]
) -> list[Built]:
    """Every case, built; if some cannot be, an error that names them all."""
    built: list[Built] = []
    refused: list[tuple[str, OpforgeError]] = []
    for case in cases:
        try:
            built.append(build(case))
        except OpforgeError as error:  # noqa: PERF203  # a case takes milliseconds
            refused.append((describe(case, params), error))
    if refused:
        raise _of_cases(entry, refused, len(cases))
    return built


def of_several(errors: Sequence[OpforgeError], what: str) -> OpforgeError:
    """The only error, or one for those of several operators."""
    if len(errors) == 1:
        return errors[0]
    blocks = [[f"{e.op} ({e.location}): {e.what}", *_lines(e.found)] for e in errors]
    return _together(what, blocks, errors)


def one_line(error: OpforgeError, described: str) -> str:
    """What an error about a case found, to follow the case: `: aten.sort at ops.py:10`."""
    found = "; ".join(line.strip() for line in _lines(error.found))
    known = f"{_UNBUILT} for {described}"
    is_known = error.what.startswith(known)
    what = error.what.removeprefix(known) if is_known else f": {error.what}"
    return f"{what}: {found}" if found else what


def listed(cases: Sequence[str], most: int = 4) -> str:
    """`x fp16 1-d; x fp32 1-d`, and of many a few."""
    named = "; ".join(cases[:most])
    more = len(cases) - most
    return f"{named} (and {counted(more, 'similar case')})" if more > 0 else named


_UNBUILT = "it cannot be built"


def _of_cases(
    entry: Entry, refused: Sequence[tuple[str, OpforgeError]], count: int
) -> OpforgeError:
    """One error for several cases.

    mylib::ranked (ops.py:8): 3 of its 4 cases cannot be built
      found: x fp16 1-d; x fp32 1-d:
          aten.sort at ops.py:10
        x fp64 2-d: n must be a constant, ...
          used at ops.py:12
      fix: ...
    """
    groups: dict[tuple[str, ...], list[tuple[str, OpforgeError]]] = {}
    for described, error in refused:
        key = (error.what.replace(f" for {described}", ""), error.found or "", error.fix or "")
        groups.setdefault(key, []).append((described, error))
    firsts = [group[0] for group in groups.values()]
    named = [listed([described for described, _ in group]) for group in groups.values()]
    if len(groups) == 1:
        (described, error), (cases,) = firsts[0], named
        if f" for {described}" in error.what:
            error.what = error.what.replace(f" for {described}", f" for {cases}")
        elif count > 1:
            error.what += f" ({cases})"
        return error.locate(None, None)
    blocks = []
    for (described, error), cases in zip(firsts, named, strict=True):
        what = error.what.replace(f" for {described}", "").removeprefix(_UNBUILT).strip()
        blocks.append([f"{cases}: {what}".strip(), *_lines(error.found)])
    what = f"{len(refused)} of its {count} cases cannot be built"
    errors = [error for _, error in firsts]
    return _together(what, blocks, errors).locate(entry.name, entry.location)


def _together(
    what: str, blocks: Sequence[Sequence[str]], errors: Sequence[OpforgeError]
) -> OpforgeError:
    kinds = {type(error) for error in errors}
    kind = kinds.pop() if len(kinds) == 1 else UnsupportedBody
    return kind(
        what,
        found="\n    ".join("\n      ".join(block) for block in blocks),
        fix="\n    ".join(dict.fromkeys(fix for error in errors for fix in _lines(error.fix))),
    )


def _lines(text: str | None) -> list[str]:
    """The lines of a text, without the indentation of an error's."""
    return [line.removeprefix("    ") for line in (text or "").splitlines()]
