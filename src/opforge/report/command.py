"""`opforge report`: what the command reads, writes and says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import BadOption, OutputNotWritable
from .changes import Change, compare
from .facts import totals
from .likeness import unlike
from .limits import Judged, judge, parse_limits
from .model import Report
from .page import render, summary
from .read import read_all


@dataclass(frozen=True)
class Made:
    """A report, what has changed since an older one, and the limits that it was checked against."""

    report: Report
    since: str = ""
    changes: tuple[Change, ...] | None = None
    judged: tuple[Judged, ...] = ()
    # Why the older one is not of the same build.
    unlike: str = ""

    @property
    def ok(self) -> bool:
        return all(one.ok for one in self.judged)

    def to_json(self) -> str:
        content: dict[str, Any] = {**self.report.to_content(), "totals": totals(self.report)}
        if self.changes is not None:
            content |= {"since": self.since, "unlike": self.unlike}
            content["changes"] = [asdict(one) for one in self.changes]
        if self.judged:
            content["limits"] = [
                {"limit": one.limit, "ok": one.ok, "beyond": [list(row) for row in one.beyond]}
                for one in self.judged
            ]
        return json.dumps(content, indent=1) + "\n"

    def to_html(self) -> str:
        return render(self.report, self.changes, self.judged, self.since, self.unlike)

    def __str__(self) -> str:
        lines = [summary(self.report)]
        if self.changes is not None:
            lines += [f"note: {self.unlike}"] if self.unlike else []
            lines += _told(self.changes, self.since)
        return "\n".join([*lines, *map(str, self.judged)]).strip()


def make(sources: Sequence[str], fail_on: str | None = None) -> Made:
    """Read what the command was given, and check it against limits."""
    limits = [] if fail_on is None else parse_limits(fail_on)
    *older, report = read_all(sources)
    if not older:
        return Made(report, judged=judge(report, None, limits))
    (old,) = older
    changes = compare(old, report)
    judged = judge(report, changes, limits, old)
    return Made(report, old.source, changes, judged, unlike(old, report))


def write(made: Made, output: str) -> None:
    """A page or JSON, by the ending of the file's name."""
    file = Path(output)
    writers = {".html": made.to_html, ".htm": made.to_html, ".json": made.to_json}
    text = writers[_ending(output)]()
    try:
        # What was read may hold halves of characters that no file can.
        file.write_bytes(text.encode(errors="backslashreplace"))
    except OSError as error:
        raise OutputNotWritable(
            f"{output} cannot be written: {error.strerror}", fix="choose another file with -o"
        ) from error


def check_output(output: str | None) -> None:
    """Raise before anything is read."""
    if output is not None:
        _ending(output)


def _ending(output: str) -> str:
    ending = Path(output).suffix.lower()
    if ending not in {".html", ".htm", ".json"}:
        raise BadOption(f"-o {output} must end in .html or .json")
    return ending


# The page and JSON have them all.
_MOST = 12


def _told(changes: tuple[Change, ...], since: str) -> list[str]:
    worse = [one for one in changes if one.verdict == "worse"]
    better = sum(one.verdict == "better" for one in changes)
    head = (
        f"since {since}: {len(changes)} changes, {len(worse)} for the worse, {better} for the "
        "better"
    )
    shown = [
        f"  {one.kind}: {one.what}: {_state(one.before)} -> {_state(one.after)}" for one in worse
    ]
    more = [f"  and {len(shown) - _MOST} more"] if len(shown) > _MOST else []
    return [head, *shown[:_MOST], *more]


def _state(value: object) -> str:
    return "none" if value is None else str(value)
