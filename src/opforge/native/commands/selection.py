"""Selects the operators to build: `--only add`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from ...errors import UnknownOperator
from ...registry import Entry, registry
from ..frontend.alternatives import operator_of, operators


def select(ops: Sequence[Any], only: Sequence[str]) -> list[Any]:
    """The operators named `add` or `mylib::add`, in the order found; all if none is named.

    An implementation of another operator cannot be selected on its own; it comes with that one.
    """
    found = operators(registry.get(op) for op in ops)
    known = sorted({name for entry in found for name in (entry.name, entry.own_name)})
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


def _fix(wanted: str, known: Sequence[str], entries: Sequence[Entry]) -> str:
    for entry in entries:
        operator = operator_of(entry)
        if operator is not None and wanted in {entry.name, entry.own_name}:
            return f"it is an implementation of {operator.own_name} and comes with it"
    close = difflib.get_close_matches(wanted, known, n=1)
    return f"did you mean {close[0]}?" if close else "choose one of these"
