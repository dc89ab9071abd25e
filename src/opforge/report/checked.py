"""What `opforge check --json` printed, for one operator or for many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import BadOption
from ..records import BadField, Codecs, each, field, keep_to, read_at
from .model import Checked

_TEXTS = Codecs({}).of(tuple[str, ...])
_STATUSES = frozenset({"pass", "fail", "skipped"})
# The row of an operator that could not be checked.
UNCHECKED = "check"


def read_check(content: Any, where: str) -> tuple[Checked, ...]:
    """Errors call the file `where`."""
    try:
        rows = tuple(_rows(content))
    except BadField as error:
        raise BadOption(
            f"{where} cannot be read", found=str(error), fix="write it with `opforge check --json`"
        ) from None
    if not rows:
        # Nothing that failed would look like a pass.
        raise BadOption(
            f"{where} has no row of a check",
            fix="write it with `opforge check --json`, of operators",
        )
    return rows


def _rows(content: Any) -> Iterator[Checked]:
    if "reports" not in content:
        yield from _report(content)
        return
    for rows in each(content, "reports", lambda report: tuple(_report(report))):
        yield from rows
    yield from each(content, "problems", _problem, [])


def _report(content: Any) -> Iterator[Checked]:
    op: str = field(content, "op", str)
    yield from each(content, "rows", lambda row: _row(op, row))


def _row(op: str, content: Any) -> Checked:
    return Checked(
        op=op,
        row=field(content, "name", str),
        status=keep_to(_STATUSES, field(content, "status", str), "status"),
        reason=field(content, "reason", str, ""),
        fix=field(content, "fix", str, ""),
        seconds=field(content, "seconds", float, 0.0),
        notes=read_at("notes", _TEXTS, field(content, "notes", list, [])),
    )


def _problem(content: Any) -> Checked:
    name, message = (field(content, key, str) for key in ("name", "message"))
    return Checked(op=name, row=UNCHECKED, status="fail", reason=message)
