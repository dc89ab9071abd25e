"""Selects the operators to build: `--only add`, and refuses named ones without a declaration."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from ...errors import Undeclared, UnknownOperator
from ...registry import Entry, registry
from ..frontend.alternatives import implementing, operator_of, operators
from ..frontend.store import declarations_of


def select(ops: Sequence[Any], only: Sequence[str]) -> list[Any]:
    """The operators named `add` or `mylib::add`, in the order found; all if none is named.

    Functions are known by their own names, too, unless an operator has that name. An
    implementation of another operator cannot be selected on its own; it comes with that one.
    """
    found = operators(registry.get(op) for op in ops)
    known = sorted({name for entry in found for name in (entry.name, entry.own_name)})
    functions = {entry.fn.__name__: entry.name for entry in found}
    only = [functions.get(name, name) if name not in known else name for name in only]
    for wanted in only:
        if wanted not in known:
            raise UnknownOperator(
                f"there is no operator {wanted!r}",
                found=f"the operators {', '.join(name for name in known if '::' not in name)}",
                fix=_fix(wanted, known, [registry.get(op) for op in ops]),
            )
    chosen = set(only or known)
    kept = {entry.name for entry in found if chosen & {entry.name, entry.own_name}}

    def is_kept(entry: Entry) -> bool:
        operator = operator_of(entry)
        return entry.name in kept or (operator is not None and operator.name in kept)

    return [op for op in ops if is_kept(registry.get(op))]


def refuse_undeclared_named(ops: Sequence[Any]) -> None:
    """Raise if operators that a user named have no `native.declare`: a build leaves such out."""
    entries = [registry.get(op) for op in ops]
    missing = [e for e in entries if not any(declarations_of(part) for part in implementing(e))]
    if missing:
        names = ", ".join(entry.name for entry in missing)
        raise Undeclared(
            f"{names} has no native.declare, so it cannot be built",
            fix=f"native.declare({missing[0].own_name}, x=native.tensor(...), ...), or leave it "
            "out of the command",
            location=missing[0].location,
        )


def _fix(wanted: str, known: Sequence[str], entries: Sequence[Entry]) -> str:
    for entry in entries:
        operator = operator_of(entry)
        if operator is not None and wanted in {entry.name, entry.own_name}:
            return f"it is an implementation of {operator.own_name} and comes with it"
    close = difflib.get_close_matches(wanted, known, n=1)
    return f"did you mean {close[0]}?" if close else "choose one of these"
