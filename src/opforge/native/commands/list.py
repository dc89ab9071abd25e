"""`opforge list`: the operators of a target, without tracing or compiling them."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...cli_targets import resolve
from ...errors import OpforgeError
from ...registry import Entry, registry
from ..frontend.c_parameters import merge
from ..frontend.declaration import declarations_of
from ..frontend.expand import Declared, expand
from ..frontend.implementations import implementing, join, operators, refuse_undeclared
from ..ir.cases import Case
from ..ir.dtypes import DTYPES
from ..ir.interface import Param, ScalarParam, TensorParam
from .operator_tree import is_tree, load_listed


@dataclass(frozen=True)
class ListedParameter:
    """A parameter of the C function; `takes` has its dtypes, or the values of a choice.

    An `optional` tensor may be NULL.
    """

    name: str
    kind: str
    takes: tuple[str, ...]
    optional: bool = False


@dataclass(frozen=True)
class Implemented:
    """One of several ops behind an operator, in the order in which they are tried."""

    name: str
    location: str
    cases: int
    covers: str
    kernels: tuple[str, ...]


@dataclass(frozen=True)
class ListedOperator:
    """One line of `opforge list --json`."""

    name: str
    location: str
    folder: str
    doc: str
    parameters: tuple[ListedParameter, ...]
    cases: int
    kernels: tuple[str, ...]
    implementations: tuple[Implemented, ...]


@dataclass
class Listed:
    """The operators found, and the problems."""

    operators: list[ListedOperator] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)


def collect(targets: Iterable[str]) -> Listed:
    """Describe the operators of each target; a target that fails is listed under problems."""
    listed = Listed()
    found: dict[str, tuple[Entry, str]] = {}
    for target in targets:
        for folder, op in _found(target, listed.problems):
            entry = registry.get(op)
            found.setdefault(entry.name, (entry, folder))
    for entry in operators(entry for entry, _ in found.values()):
        _describe_into(listed, entry, found[entry.name][1])
    return listed


def render(operators: Sequence[ListedOperator]) -> str:
    """For a person: a block per operator."""
    return "\n\n".join("\n".join(_lines(operator)) for operator in operators)


def _found(target: str, problems: list[str]) -> list[tuple[str, Any]]:
    try:
        if is_tree(target):
            loaded = load_listed(target)
            problems += map(str, loaded.problems)
            return [
                (str(path if path.is_dir() else path.parent), op) for path, op in loaded.operators
            ]
        return [("", op) for op in resolve(target)]
    except OpforgeError as error:
        problems.append(str(error))
        return []


def _describe_into(listed: Listed, entry: Entry, folder: str) -> None:
    try:
        listed.operators.append(_describe(entry, folder))
    except OpforgeError as error:
        listed.problems.append(str(error))


def _describe(entry: Entry, folder: str) -> ListedOperator:
    info = entry.describe()
    parts = implementing(entry)
    served: tuple[Implemented, ...] = ()
    params: tuple[ListedParameter, ...] = ()
    if any(declarations_of(part) for part in parts):
        refuse_undeclared(entry, parts)
        joined = join(entry, parts)
        expanded = [expand(part, joined) for part in parts]
        served = tuple(map(_implemented, parts, expanded))
        every = [case for declared in expanded for case in declared.cases]
        params = tuple(_parameter(p, every) for p in joined.params)
    kernels = [kernel for one in served for kernel in one.kernels] or _kernels(entry)
    documented = (inspect.getdoc(entry.fn) or "").strip().splitlines()
    return ListedOperator(
        info.name,
        info.location,
        folder,
        documented[0] if documented else "",
        params,
        sum(one.cases for one in served),
        tuple(dict.fromkeys(kernels)),
        served,
    )


def _implemented(entry: Entry, declared: Declared) -> Implemented:
    own = merge(entry.flat(), declarations_of(entry)).params
    covers = "; ".join(f"{p.name}: {p.doc}" for p in own)
    count = len(declared.cases)
    return Implemented(entry.name, entry.location, count, covers, tuple(_kernels(entry)))


def _kernels(entry: Entry) -> list[str]:
    return [f"{kernel.name} ({kernel.location})" for kernel in entry.describe().kernels]


def _parameter(param: Param, cases: Sequence[Case]) -> ListedParameter:
    if isinstance(param, TensorParam):
        tensors = [t for c in cases for t in c.tensors if t.param == param.name]
        dtypes = dict.fromkeys(DTYPES[t.dtype].name for t in tensors if t.present)
        return ListedParameter(param.name, "tensor", tuple(dtypes), param.optional)
    if isinstance(param, ScalarParam):
        return ListedParameter(param.name, "scalar", (param.dtype,))
    chosen = {dict(case.choices).get(param.name) for case in cases}
    return ListedParameter(
        param.name, "choice", tuple(v for i, v in enumerate(param.values) if i in chosen)
    )


def _lines(operator: ListedOperator) -> list[str]:
    shown = [
        f"{p.name}: {' or '.join(p.takes)} {p.kind}" + (" or NULL" if p.optional else "")
        for p in operator.parameters
    ]
    rows = [
        ("", operator.doc),
        ("parameters", ", ".join(shown)),
        ("cases", str(operator.cases) if operator.cases else "none: no native.declare"),
        ("kernels", ", ".join(operator.kernels) or "none found"),
    ]
    if len(operator.implementations) > 1:
        rows += [
            (f"[{i}]", f"{one.name} ({one.location}), {one.covers}")
            for i, one in enumerate(operator.implementations)
        ]
    told = [f"  {title:<10}  {text}" if title else f"  {text}" for title, text in rows if text]
    return [f"{operator.name}  ({operator.location})", *told]
