"""From declared operators to a plan: every case traced, every kernel variant known."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .._compat.host_caches import HostCaches
from ..arch import HOPPER
from ..arch_names import parse_archs
from ..errors import BadOption, NotFound, OpforgeError, UnsupportedBody
from ..registry import Entry, registry
from .frontend.backward_formula import formula_calling, formula_of
from .frontend.declaration import declarations_of
from .frontend.declare import asked_backward
from .frontend.expand import (
    Declared,
    backward_schema,
    expand,
    merge,
    output_docs,
    result_of,
    schema_arguments,
    schema_of,
    schema_returns,
)
from .frontend.implementations import (
    backward_hash,
    implementing,
    join,
    operators,
    part_hash,
    refuse_undeclared,
    source_hash,
)
from .ir.case_text import describe
from .ir.cases import Allocate, Case, Fill, Launch, Path, Pointer, Step
from .ir.expr import Term, make
from .ir.interface import Implementation, Op, Param, ScalarParam, TensorParam
from .ir.kernel_request import want
from .ir.places import Told
from .ir.program import Plan
from .tracing.backward import Backward, build_backward
from .tracing.case_builder import (
    BuiltCase,
    all_of,
    build_case,
    first_notes,
    listed,
    of_several,
    one_line,
)
from .tracing.launches import Choose, by_table, first_config, in_use

# Hears an op's name, and how many of its paths are traced.
Traced = Callable[[str, int], None]


def plan(
    ops: Sequence[Any],
    archs: str | int | Iterable[str | int] = "sm_90",
    *,
    name: str | None = None,
    choose: Choose = first_config,
    traced: Traced | None = None,
) -> Plan:
    """Trace every declared case of the operators; ops without a declaration are left out.

        native.plan([silu, rms_norm], archs=["sm_80", "sm_90"])

    `traced` hears an op's name, and how many of its paths are traced, after each.
    """
    entries = operators(op if isinstance(op, Entry) else registry.get(op) for op in ops)
    parts = {e.name: implementing(e) for e in entries}
    declared = [e for e in entries if any(declarations_of(part) for part in parts[e.name])]
    if not declared:
        names = ", ".join(e.name for e in entries) or "no operator at all"
        raise NotFound(
            f"nothing to build: {names} has no native.declare",
            fix="native.declare(op, x=native.tensor(...), ...) next to the operators",
        )
    made = Plan(name or common_namespace(declared), [], parse_archs(archs))
    check_name(made.name)
    refuse_namesakes(declared)
    own = {entry.name for entry in declared}
    refused: list[OpforgeError] = []
    for entry in declared:
        refuse_undeclared(entry, parts[entry.name])
        asked = asked_backward(d for part in parts[entry.name] for d in declarations_of(part))
        try:
            op, forward = _plan_op(entry, parts[entry.name], made, choose, traced)
            made.ops.append(dataclasses.replace(op, formula=formula_of(entry, own)))
            if asked is not False and _lacks_backward(entry, declared, asked=bool(asked)):
                _plan_backward(entry, forward, made, choose, traced, asked=bool(asked))
        except OpforgeError as error:
            refused.append(error)
    if refused:
        raise of_several(refused, f"{len(refused)} of {len(declared)} operators cannot be built")
    return made


def _counting(traced: Traced | None, name: str) -> Callable[[], None]:
    paths = itertools.count(1)

    def on_path() -> None:
        if traced is not None:
            traced(name, next(paths))

    return on_path


def _plan_op(
    entry: Entry, parts: Sequence[Entry], made: Plan, choose: Choose, traced: Traced | None
) -> tuple[Op, Declared]:
    on_path = _counting(traced, entry.name)
    joined = join(entry, parts)
    cases: list[Case] = []
    served = []
    refused: list[OpforgeError] = []
    for index, part in enumerate(parts):
        found = expand(part, joined)
        build = functools.partial(
            build_case, part, found, archs=made.archs, choose=choose, caches=HostCaches(),
            on_path=on_path,
        )  # fmt: skip
        try:
            built = all_of(part, found.params, found.cases, build)
        except OpforgeError as error:
            refused.append(error)
            continue
        for one in built:
            _take(one, made)
        made.notes += _refusals(part, built)
        cases += [_placed(b.case, index) for b in built]
        served.append(_implementation(part, parts, found.outputs))
    if refused:
        what = f"{len(refused)} of its {len(parts)} implementations cannot be built"
        raise of_several(refused, what).locate(entry.name, entry.location)
    made.notes += _other_types(entry, joined.params)
    op = Op(
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
        result=result_of(entry.flat()),
        implementations=tuple(served),
    )
    return op, dataclasses.replace(found, signature=entry.flat().signature)


def _lacks_backward(entry: Entry, declared: Sequence[Entry], *, asked: bool) -> bool:
    """Whether the op has a backward for which there is no operator yet."""
    if entry.registered is None or entry.registered.definition.backward is None:
        if asked:
            raise UnsupportedBody(
                "its native.declare says backward=True, and it has none",
                fix="@opforge.op(..., backward=fn, setup_context=fn), or leave backward= out",
                op=entry.name,
                location=entry.location,
            )
        return False
    if f"{entry.own_name}_backward" in {each.own_name for each in declared}:
        return False
    # One that is declared but not chosen for this build would come with another signature.
    other = _namesake(entry)
    return other is None or not declarations_of(other)


def _namesake(entry: Entry) -> Entry | None:
    """The user's own operator of the name that the backward would have."""
    found = registry.find(f"{entry.name}_backward")
    return None if found is None or found.stands_in else found


def _plan_backward(
    entry: Entry,
    forward: Declared,
    made: Plan,
    choose: Choose,
    traced: Traced | None,
    *,
    asked: bool,
) -> None:
    """Add the declared backward of the last operator; one that was not asked for may fail."""
    op = made.ops[-1]
    on_path = _counting(traced, f"{entry.name}_backward")
    try:
        found = build_backward(entry, forward, op.cases, made.archs, choose, on_path=on_path)
    except OpforgeError as error:
        if asked:
            raise
        made.notes.append(_without_backward(entry, error))
        return
    for one in found.built:
        _take(one, made)
    made.notes += _refusals(found.entry, found.built)
    placed = tuple(_placed(one.case, 0) for one in found.built)
    backward = Op(
        name=found.entry.own_name,
        torch_name="",
        location=found.entry.location,
        params=found.params,
        outputs=found.outputs,
        cases=placed,
        doc=f"The gradients of {entry.own_name}'s inputs, from those of its outputs.",
        source_hash=backward_hash(entry),
    )
    if _namesake(entry) is None:
        schema, arguments, returns = backward_schema(
            entry, forward.values, found.params, _optional(placed)
        )
        backward = dataclasses.replace(
            backward,
            torch_name=found.entry.name,
            schema=schema,
            arguments=arguments,
            returns=returns,
        )
        made.ops[-1] = _carrying(op, entry, found)
    made.ops.append(backward)


def _carrying(op: Op, entry: Entry, found: Backward) -> Op:
    """The op with its backward as a formula, where calls of it from autograd give the same.

    They would lack marks of outputs, and they have inputs as they were before broadcasting.
    """
    broadcasts = any(isinstance(p, TensorParam) and p.broadcast for p in op.params)
    if op.formula or found.marks or broadcasts:
        return op
    formula = formula_calling(found.entry.name, entry, found.passed, found.gradients)
    return dataclasses.replace(op, formula=formula)


def _optional(cases: Sequence[Case]) -> list[bool]:
    """By output, whether some calls do not have it."""
    paths = [path.outputs for case in cases for path in case.paths if not path.refused]
    return [None in outputs for outputs in zip(*paths, strict=True)]


def _without_backward(entry: Entry, error: OpforgeError) -> Told:
    opening = f"{entry.name}: the library has no {entry.own_name}_backward, because "
    lines = [line.strip() for line in (error.found or "").splitlines()]
    found = f": {'; '.join(lines)}" if lines else ""
    return Told(f"{opening}{error.what}{found}; {error.fix}", f"{opening}it cannot be built")


def _placed(case: Case, implementation: int) -> Case:
    paths = tuple(planned(path) for path in case.paths)
    return dataclasses.replace(case, implementation=implementation, paths=paths)


def _implementation(part: Entry, parts: Sequence[Entry], outputs: Sequence[str]) -> Implementation:
    shorts = [each.own_name for each in parts]
    own = merge(part.flat(), declarations_of(part))
    return Implementation(
        name=part.own_name if shorts.count(part.own_name) == 1 else part.name,
        torch_name=part.name,
        location=part.location,
        doc=inspect.getdoc(part.fn) or "",
        source_hash=part_hash(part),
        schema=schema_of(part),
        takes=(
            *((p.name, p.doc) for p in own.params if isinstance(p, TensorParam)),
            *output_docs(declarations_of(part), outputs),
        ),
    )


def _refusals(entry: Entry, built: Sequence[BuiltCase]) -> list[Told]:
    """Inputs that the body refuses, grouped by reason."""
    cases: dict[Told, list[str]] = {}
    for one in built:
        for why, where in one.refused.items():
            cases.setdefault(why, []).extend(where)
    told = []
    for why, where in cases.items():
        opening = f"{entry.name} is not built for {listed(where, 1)}: "
        told.append(Told(opening + why, opening + why.short))
    return told


# The types in which the JIT passes Python's numbers.
_USUAL = {"fp32", "i32", "i64"}


def _other_types(entry: Entry, params: Sequence[Param]) -> list[str]:
    scalars = [p for p in params if isinstance(p, ScalarParam) and p.dtype not in _USUAL]
    return [
        f"{entry.name}: kernels receive {p.name} as {p.dtype}, as declared; the JIT would pass "
        f"{'fp32' if p.dtype.startswith(('fp', 'bf')) else 'i32 or i64'}"
        for p in scalars
    ]


def _take(built: BuiltCase, made: Plan) -> None:
    for key, (request, archs) in built.requests.items():
        want(made.requests, request, archs)
        if "i64" in request.types:
            made.spare.add(key)
    made.notes += [n for n in built.notes if n not in made.notes]


def told_of(op: Entry, tuning: str | os.PathLike[str] | None = None) -> list[str]:
    """What a build would note of the first case of a declared op that builds, and why others don't.

    `explain` says it. One trace of each case is enough to say which torch calls become which
    kernels, and takes milliseconds; a build traces all paths. Without a table of their own,
    products have the tiles of the tables in use.
    """
    choose = in_use() if tuning is None else by_table(tuning)
    if not declarations_of(op):
        return []
    try:
        declared = expand(op)
    except OpforgeError as error:
        return [f"not in a C library{one_line(error, '')}"]
    refused: dict[str, list[str]] = {}
    said: list[str] | None = None
    caches = HostCaches()
    for number, case in enumerate(declared.cases, start=1):
        described = describe(case, declared.params)
        try:
            notes = first_notes(op, declared, case, (HOPPER,), choose, caches=caches)
        except OpforgeError as error:
            refused.setdefault(one_line(error, described), []).append(described)
            continue
        if said is None:
            count = len(declared.cases)
            place = "the first" if number == 1 else f"number {number}"
            more = f", {place} of {count} cases" if count > 1 else ""
            said = [f"for {described}{more}:", *notes] if notes else []
    if said:
        # A build raises unless it has all cases.
        said[0] = f"{'would be ' if refused else ''}in a C library, {said[0]}"
    return [
        *(f"not in a C library for {listed(c)}{why}" for why, c in refused.items()),
        *(said or ()),
    ]


# Headers that C and CUDA programs include, and libraries that they link.
_SYSTEM = frozenset(
    {
        "assert", "complex", "ctype", "errno", "fenv", "float", "inttypes", "iso646", "limits",
        "locale", "math", "setjmp", "signal", "stdalign", "stdarg", "stdatomic", "stdbool",
        "stddef", "stdint", "stdio", "stdlib", "stdnoreturn", "string", "strings", "tgmath",
        "threads", "time", "uchar", "unistd", "wchar", "wctype", "dlfcn", "fcntl", "memory",
        "pthread", "sched",
        "c", "dl", "gcc", "m", "rt", "util",
        "cuda", "cudart", "cublas", "cudnn", "cufft", "nvrtc",
    }
)  # fmt: skip

# File systems allow 255 bytes, and files have endings and prefixes.
_LONGEST = 200


def common_namespace(entries: Sequence[Entry]) -> str:
    """The operators' common namespace."""
    found = sorted({e.name.partition("::")[0] for e in entries})
    if len(found) > 1:
        raise BadOption(
            f"the operators have {len(found)} namespaces, so the library has no default name",
            found=", ".join(found),
            fix="give one: --name NAME",
        )
    return found[0]


def check_name(name: str) -> None:
    """Refuse a name that cannot prefix C functions or name files."""
    if name in _SYSTEM:
        raise BadOption(
            f"{name!r} is a system name: programs that include <{name}.h> or link "
            f"-l{name} would pick up this library",
            fix=f"choose another name: --name {name}_ops",
        )
    _refuse_long(name, "the library's name", "--name NAME")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise BadOption(
            f"{name!r} cannot prefix the name of a C function",
            fix="use letters, digits and underscores, starting with a letter: --name NAME",
        )


def _refuse_long(name: str, what: str, fix: str, found: str | None = None) -> None:
    if len(name) > _LONGEST:
        raise BadOption(
            f"{what} has {len(name)} characters, and no file could be named after it: "
            f"{name[:20]}...",
            found=found,
            fix=f"choose one of at most {_LONGEST}: {fix}",
        )


def refuse_namesakes(entries: Sequence[Entry]) -> None:
    seen: dict[str, Entry] = {}
    for entry in entries:
        short = entry.own_name
        if "." in short:
            raise BadOption(
                f"{entry.name} has an overload's name, which no C function can have",
                found=entry.location,
                fix="register it under a name of its own",
            )
        _refuse_long(short, "an operator's name", "register it under another", entry.location)
        other = seen.setdefault(short, entry)
        if other is not entry:
            raise BadOption(
                f"two operators would become the C function {short}",
                found=f"{other.name} ({other.location}), {entry.name} ({entry.location})",
                fix="rename one of them, or build two libraries",
            )


# As allocators align.
_ALIGNMENT = 256
_NAME = "workspace"


def planned(path: Path) -> Path:
    """A path that allocates once, before its first step."""
    allocations = [step for step in path.steps if isinstance(step, Allocate)]
    if len(allocations) < 2:  # one has nothing to share with
        return path
    slots = _slots(path.steps)
    offsets: dict[str, Term] = {}
    total: Term = 0
    for buffers in slots:
        size = _rounded(buffers[0].bytes)
        for buffer in buffers[1:]:
            size = make("max", size, _rounded(buffer.bytes))
        offsets |= {buffer.buffer: total for buffer in buffers}
        total = size if total == 0 else make("+", total, size)
    moved = [_moved(step, offsets) for step in path.steps if not isinstance(step, Allocate)]
    return dataclasses.replace(path, steps=(Allocate(_NAME, total), *moved))


def _slots(steps: Sequence[Step]) -> list[list[Allocate]]:
    """Buffers that follow one another in the same memory."""
    last = {name: at for at, step in enumerate(steps) for name in _used(step)}
    slots: list[list[Allocate]] = []
    for at, step in enumerate(steps):
        if isinstance(step, Allocate):
            free = (slot for slot in slots if last.get(slot[-1].buffer, -1) < at)
            slot = next(free, None)
            if slot is None:
                slots.append([step])
            else:
                slot.append(step)
    return slots


def _used(step: Step) -> Iterator[str]:
    if isinstance(step, Fill):
        yield step.buffer
    elif isinstance(step, Launch):
        yield from (a.buffer for a in step.arguments if isinstance(a, Pointer))


def _rounded(size: Term) -> Term:
    return make("*", make("//", make("+", size, _ALIGNMENT - 1), _ALIGNMENT), _ALIGNMENT)


def _moved(step: Step, offsets: dict[str, Term]) -> Step:
    if isinstance(step, Fill) and step.buffer in offsets:
        offset = _sum(step.offset, offsets[step.buffer])
        return dataclasses.replace(step, buffer=_NAME, offset=offset)
    if isinstance(step, Launch):
        arguments = tuple(
            dataclasses.replace(a, buffer=_NAME, offset=_sum(a.offset, offsets[a.buffer]))
            if isinstance(a, Pointer) and a.buffer in offsets
            else a
            for a in step.arguments
        )
        return dataclasses.replace(step, arguments=arguments)
    return step


def _sum(a: Term, b: Term) -> Term:
    return b if a == 0 else a if b == 0 else make("+", a, b)
