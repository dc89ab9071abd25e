"""`opforge list`: what operators there are, without tracing or compiling any."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import opforge

from ..errors import OpforgeError
from ..registry import registry
from ..targets import resolve
from .cases import Declared, expand
from .dtypes import DTYPES
from .program import Param, ScalarParam, TensorParam
from .tree import is_tree, load


@dataclass(frozen=True)
class Parameter:
    """A parameter of the C function; `takes` is its dtypes, or the values of a choice."""

    name: str
    kind: str
    takes: tuple[str, ...]


@dataclass(frozen=True)
class Operator:
    """One line of `opforge list --json`."""

    name: str
    location: str
    folder: str
    doc: str
    parameters: tuple[Parameter, ...]
    cases: int
    kernels: tuple[str, ...]


@dataclass
class Listed:
    """What was found, and what was not to be had."""

    operators: list[Operator] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)


def collect(targets: Iterable[str]) -> Listed:
    """Describe the operators of each target; a target that fails is told of among the problems."""
    listed = Listed()
    seen: set[int] = set()
    for target in targets:
        for folder, op in _found(target, listed.problems):
            if id(op) in seen:
                continue
            seen.add(id(op))
            try:
                listed.operators.append(_describe(op, folder))
            except OpforgeError as error:
                listed.problems.append(str(error))
    return listed


def render(operators: Sequence[Operator]) -> str:
    """For a person: a block per operator."""
    return "\n\n".join("\n".join(_lines(operator)) for operator in operators)


def _found(target: str, problems: list[str]) -> list[tuple[str, Any]]:
    try:
        if is_tree(target):
            loaded = load(target)
            problems += map(str, loaded.problems)
            return [(str(folder), op) for folder, op in loaded.operators]
        return [("", op) for op in resolve(target)]
    except OpforgeError as error:
        problems.append(str(error))
        return []


def _describe(op: Any, folder: str) -> Operator:
    entry, info = registry.get(op), opforge.info(op)
    declared = expand(entry) if entry.declarations else None
    documented = (inspect.getdoc(entry.fn) or "").strip().splitlines()
    return Operator(
        info.name,
        info.location,
        folder,
        documented[0] if documented else "",
        () if declared is None else tuple(_parameter(p, declared) for p in declared.params),
        0 if declared is None else len(declared.cases),
        tuple(f"{kernel.name} ({kernel.location})" for kernel in info.kernels),
    )


def _parameter(param: Param, declared: Declared) -> Parameter:
    if isinstance(param, TensorParam):
        tensors = [t for c in declared.cases for t in c.tensors if t.param == param.name]
        dtypes = dict.fromkeys(DTYPES[t.dtype].name for t in tensors if t.present)
        return Parameter(param.name, "tensor", tuple(dtypes))
    if isinstance(param, ScalarParam):
        return Parameter(param.name, "scalar", (param.dtype,))
    return Parameter(param.name, "choice", param.values)


def _lines(operator: Operator) -> list[str]:
    shown = [f"{p.name}: {' or '.join(p.takes)} {p.kind}" for p in operator.parameters]
    rows = [
        ("", operator.doc),
        ("parameters", ", ".join(shown)),
        ("cases", str(operator.cases) if operator.cases else "none: nothing is declared"),
        ("kernels", ", ".join(operator.kernels) or "none found"),
    ]
    told = [f"  {title:<10}  {text}" if title else f"  {text}" for title, text in rows if text]
    return [f"{operator.name}  ({operator.location})", *told]
