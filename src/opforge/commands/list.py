"""`opforge list`: the operators of a target, without tracing or compiling them."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import OpforgeError
from ..native.frontend.declaration import declarations_of
from ..native.frontend.expand import expand, merge
from ..native.frontend.implementations import implementing, join, operators, refuse_undeclared
from ..native.ir.cases import Case
from ..native.ir.dtypes import DTYPES
from ..native.ir.interface import Param, ScalarParam, TensorParam
from ..native.plan import refuse_namesakes
from ..native.targets import Place, is_declared, listed, load
from ..registry import Entry, registry


@dataclass
class Listed:
    """The operators of some targets, each as `opforge list --json` has it, and the problems."""

    operators: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)


def collect(targets: Iterable[str]) -> Listed:
    """Describe the operators of each target; a target that fails is listed under problems."""
    found = Listed()
    places: dict[str, tuple[Entry, Place]] = {}
    for target in targets:
        try:
            loaded = load(target, listed)
            found.problems += map(str, loaded.problems)
            placed = [(registry.get(op), place) for op, place in loaded.places]
            for entry, place in placed:
                places.setdefault(entry.name, (entry, place))
            # In folders of operators.
            built = [e for e, p in placed if p.folder and p.module.__name__.endswith(".op")]
            refuse_namesakes([entry for entry in operators(built) if is_declared(entry)])
        except OpforgeError as error:  # noqa: PERF203  # the other targets are listed all the same
            found.problems.append(str(error))
    for entry in operators(entry for entry, _ in places.values()):
        folder = places[entry.name][1].folder
        try:
            found.operators.append(_describe(entry, str(folder or "")))
        except OpforgeError as error:
            found.problems.append(str(error))
    return found


def render(listed: Sequence[dict[str, Any]]) -> str:
    """For a person: a block per operator."""
    return "\n\n".join("\n".join(_lines(operator)) for operator in listed)


def _describe(entry: Entry, folder: str) -> dict[str, Any]:
    parts = implementing(entry)
    served: list[dict[str, Any]] = []
    params: list[dict[str, Any]] = []
    if any(declarations_of(part) for part in parts):
        refuse_undeclared(entry, parts)
        joined = join(entry, parts)
        cases = [expand(part, joined).cases for part in parts]
        served = [_implementation(part, len(own)) for part, own in zip(parts, cases, strict=True)]
        params = [_parameter(p, [case for own in cases for case in own]) for p in joined.params]
    kernels = [kernel for each in served for kernel in each["kernels"]] or _kernels(entry)
    return {
        "name": entry.name,
        "location": entry.location,
        "folder": folder,
        "doc": next(iter((inspect.getdoc(entry.fn) or "").strip().splitlines()), ""),
        "parameters": params,
        "cases": sum(each["cases"] for each in served),
        "kernels": list(dict.fromkeys(kernels)),
        # In the order in which they are tried.
        "implementations": served,
    }


def _implementation(entry: Entry, cases: int) -> dict[str, Any]:
    own = merge(entry.flat(), declarations_of(entry)).params
    return {
        "name": entry.name,
        "location": entry.location,
        "cases": cases,
        "covers": "; ".join(f"{p.name}: {p.doc}" for p in own),
        "kernels": _kernels(entry),
    }


def _kernels(entry: Entry) -> list[str]:
    return [f"{kernel.name} ({kernel.location})" for kernel in entry.describe().kernels]


def _parameter(param: Param, cases: Sequence[Case]) -> dict[str, Any]:
    """A parameter of the C function, which takes dtypes or the values of a choice."""
    if isinstance(param, TensorParam):
        tensors = [t for c in cases for t in c.tensors if t.param == param.name]
        kind, takes = (
            "tensor",
            list(dict.fromkeys(DTYPES[t.dtype].name for t in tensors if t.present)),
        )
    elif isinstance(param, ScalarParam):
        kind, takes = "scalar", [param.dtype]
    else:
        chosen = {dict(case.choices).get(param.name) for case in cases}
        kind, takes = "choice", [v for i, v in enumerate(param.values) if i in chosen]
    # An optional tensor may be NULL.
    optional = isinstance(param, TensorParam) and param.optional
    return {"name": param.name, "kind": kind, "takes": takes, "optional": optional}


def _lines(operator: dict[str, Any]) -> list[str]:
    shown = [
        f"{p['name']}: {' or '.join(p['takes'])} {p['kind']}"
        + (" or NULL" if p["optional"] else "")
        for p in operator["parameters"]
    ]
    rows = [
        ("", operator["doc"]),
        ("parameters", ", ".join(shown)),
        ("cases", str(operator["cases"] or "none: no native.declare")),
        ("kernels", ", ".join(operator["kernels"]) or "none found"),
    ]
    if len(operator["implementations"]) > 1:
        rows += [
            (f"[{i}]", f"{each['name']} ({each['location']}), {each['covers']}")
            for i, each in enumerate(operator["implementations"])
        ]
    told = [f"  {title:<10}  {text}" if title else f"  {text}" for title, text in rows if text]
    return [f"{operator['name']}  ({operator['location']})", *told]
