"""Which of the operators found are built: `--only add`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import opforge

from ..errors import UnknownOperator


def select(ops: Sequence[Any], only: Sequence[str]) -> list[Any]:
    """Those named, by `add` or `mylib::add`, in the order found; all where none is named."""
    if not only:
        return list(ops)
    names = {id(op): opforge.info(op).name for op in ops}
    known = sorted({*names.values(), *(name.partition("::")[2] for name in names.values())})
    for wanted in only:
        if wanted not in known:
            shorts = [name for name in known if "::" not in name]
            close = difflib.get_close_matches(wanted, known, n=1)
            raise UnknownOperator(
                f"there is no operator {wanted!r}",
                found=f"the operators {', '.join(shorts)}",
                fix=f"did you mean {close[0]}?" if close else "choose one of these",
            )
    chosen = set(only)
    return [op for op in ops if chosen & {names[id(op)], names[id(op)].partition("::")[2]}]
