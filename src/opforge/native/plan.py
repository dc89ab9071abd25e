"""From declared operators to a plan: every case traced, every kernel variant known."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._compat.host_caches import HostCaches
from ..arch import Arch
from ..arch_names import parse_archs
from ..errors import NotFound, OpforgeError, UnsupportedBody
from ..notebook import counted, html_table
from ..registry import Entry, registry
from .frontend.alternatives import implementing, operators, refuse_undeclared
from .frontend.backward_formula import formula_calling, formula_of
from .frontend.c_parameters import merge, output_docs, result_of
from .frontend.declare import asked_backward
from .frontend.expand import Declared, expand
from .frontend.implementations import join
from .frontend.source_hash import backward_hash, part_hash, source_hash
from .frontend.store import declarations_of
from .frontend.torch_schema import backward_schema, schema_arguments, schema_of, schema_returns
from .ir.cases import Case
from .ir.interface import Implementation, Op, Param, ScalarParam, TensorParam
from .ir.kernel_request import Requests, want
from .ir.places import Told
from .library_name import check_name, common_namespace, refuse_namesakes
from .tracing.backward import Backward, build_backward
from .tracing.case_builder import BuiltCase, build_case, first_config
from .tracing.launches import Choose
from .tracing.refusals import all_of, listed, of_several
from .workspace import planned

Archs = tuple[Arch, ...]
# Hears an op's name, and how many of its paths are traced.
Traced = Callable[[str, int], None]


@dataclass
class Plan:
    """What a build will make: operators with their paths, and kernels to compile."""

    name: str
    ops: list[Op]
    archs: Archs
    requests: Requests = field(default_factory=dict)
    # Kernels for sizes beyond 32 bits; one that does not compile is dropped.
    spare: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        variants = counted(self._variants, "kernel variant")
        return f"<Plan of {self.name}: {counted(len(self.ops), 'operator')}, {variants} to compile>"

    def _repr_html_(self) -> str:
        title = f"{self.name}: {counted(self._variants, 'kernel variant')} to compile"
        return html_table(title, OP_COLUMNS, op_rows(self.ops))

    @property
    def _variants(self) -> int:
        return sum(len(archs) for _, archs in self.requests.values())


OP_COLUMNS = ("operator", "parameters", "cases", "location")


def op_rows(ops: Sequence[Op]) -> list[tuple[str, ...]]:
    """Operators as rows of a table."""
    return [
        (op.name, ", ".join(p.name for p in op.params), str(len(op.cases)), op.location)
        for op in ops
    ]


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
            entry, forward, found.params, _optional(placed)
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
