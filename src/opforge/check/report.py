"""What a check found, as records, as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ..notebook import html_table

PASS, FAIL, SKIPPED = "pass", "fail", "skipped"
# Of a whole check.
PASSED, FAILED, INCOMPLETE = "passed", "failed", "incomplete"
# Without one of these, nobody has seen what the op computes.
DECISIVE = ("eager", "numerics")


@dataclass(frozen=True)
class Row:
    """One question and its answer.

    `status` is "pass", "fail" or "skipped"; `reason` says why it failed or was skipped, or what
    was seen; `fix` what to do about it; `notes` what the user should know in any case.
    """

    name: str
    status: str
    reason: str = ""
    fix: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckReport:
    """Every row of one check; `report["autograd"]` is one of them."""

    op: str
    location: str
    inputs: tuple[str, ...]
    machine: str
    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """Whether no row failed; `outcome` also says whether the op ran at all."""
        return not self.failures

    @property
    def outcome(self) -> str:
        """Either "failed", "passed", or "incomplete": nothing failed, but the op did not run."""
        if self.failures:
            return FAILED
        ran = any(row.name in DECISIVE and row.status == PASS for row in self.rows)
        return PASSED if ran else INCOMPLETE

    @property
    def failures(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.status == FAIL)

    def __getitem__(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"no row {name!r}; the rows are {', '.join(r.name for r in self.rows)}")

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def as_json(self) -> str:
        """The report as JSON text: op, ok, outcome, and rows with name, status, reason and more."""
        fields = {"ok": self.ok, "outcome": self.outcome, **dataclasses.asdict(self)}
        for row in fields["rows"]:
            row["seconds"] = round(row["seconds"], 3)
        return json.dumps(fields, indent=2)

    def summary(self) -> str:
        if self.outcome != INCOMPLETE:
            return self.counts()
        return f"{self.counts()}; {INCOMPLETE}: neither {' nor '.join(DECISIVE)} ran"

    def counts(self) -> str:
        """`11 passed, 1 failed, 5 skipped in 17.3 s`."""
        counts = Counter(row.status for row in self.rows)
        passed, failed, skipped = (counts[status] for status in (PASS, FAIL, SKIPPED))
        seconds = sum(row.seconds for row in self.rows)
        return f"{passed} passed, {failed} failed, {skipped} skipped in {seconds:.1f} s"

    def header(self) -> str:
        return f"{self.op}  ({self.location})\n{self.circumstances()}"

    def circumstances(self) -> str:
        """The machine and the inputs."""
        lines = [f"  on      {self.machine}"]
        lines += [f"  {'input ' if i == 0 else '      '}  {t}" for i, t in enumerate(self.inputs)]
        return "\n".join(lines)

    def render_failures(self) -> str:
        """Only what failed, for the message of a test."""
        return "\n".join([self.header(), "", *_table(self.failures), "", self.summary()])

    def __repr__(self) -> str:
        failed = f"; failed: {', '.join(row.name for row in self.failures)}" if not self.ok else ""
        return f"<CheckReport of {self.op}: {self.summary()}{failed}>"

    def _repr_html_(self) -> str:
        rows = [
            (row.name, row.status, "\n".join([row.reason, *row.notes]).strip(), row.fix)
            for row in self.rows
        ]
        return html_table(f"{self.op}: {self.summary()}", ("", "status", "", "fix"), rows)

    def __str__(self) -> str:
        return "\n".join([self.header(), "", *_table(self.rows), "", self.summary()])


_STATUS_WIDTH = len(SKIPPED)
_TEXT_WIDTH = 76


def _table(rows: tuple[Row, ...]) -> list[str]:
    width = max((len(row.name) for row in rows), default=0)
    lines: list[str] = []
    shown: set[str] = set()
    for row in rows:
        start = f"  {row.name:<{width}}  {row.status:<{_STATUS_WIDTH}}"
        first, *rest = textwrap.wrap(row.reason, _TEXT_WIDTH) or [""]
        lines.append(f"{start}  {first}".rstrip())
        indent = " " * (len(start) + 2)
        lines += [indent + line for line in rest]
        # Ten rows that lack a GPU need to say only once what helps.
        if row.fix not in shown:
            lines += _under(indent, "fix", row.fix)
        if row.status == SKIPPED:
            shown.add(row.fix)
        lines += [line for note in row.notes for line in _under(indent, "note", note)]
    return lines


def _under(indent: str, title: str, text: str) -> list[str]:
    if not text:
        return []
    hang = " " * (len(title) + 2)
    return [indent + line for line in textwrap.wrap(f"{title}: {text}", 76, subsequent_indent=hang)]
