"""`--fail-on "spills>0,bytes>20MB,uncovered>0"`: limits, and the rows that are beyond them."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..errors import BadOption
from .changes import WORSE, Change, facts, no_coverage, unlike
from .model import Report

Changes = tuple[Change, ...]
# A row that a limit is checked against: what it is called, its number, and what is said of it.
# Without a number it is not known, and beyond any limit.
Row = tuple[str, int | None, str]
# All that a limit is checked against; None where the report cannot tell.
Rows = Callable[[Report, Changes | None], list[Row] | None]


@dataclass(frozen=True)
class Metric:
    """What a limit is of; `needs` is what to give where a report cannot tell."""

    about: str
    rows: Rows
    needs: str = "a build: the folder of `opforge build`"
    # Whether numbers may have a unit of bytes.
    is_bytes: bool = False
    # Of what is compared: why these two cannot be, or nothing.
    refusal: Callable[[Report, Report], str] = lambda _old, _new: ""


@dataclass(frozen=True)
class Limit:
    """What a report must not exceed: `bytes > 20MB`."""

    metric: str
    comparison: str
    number: float
    text: str


@dataclass(frozen=True)
class Judged:
    """A limit, and the rows beyond it: what, and how much."""

    limit: str
    beyond: tuple[tuple[str, str], ...]

    @property
    def ok(self) -> bool:
        return not self.beyond

    def lines(self, most: int) -> list[str]:
        """The first rows beyond it, and how many more there are."""
        more = len(self.beyond) - most
        rows = [f"{what}: {amount}" for what, amount in self.beyond[:most]]
        return [*rows, *([f"and {more} more"] if more > 0 else [])]


_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq,
    "!=": operator.ne,
}  # fmt: skip
_UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30,
}  # fmt: skip
_LIMIT = re.compile(r"\s*(\w+)\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_limits(text: str) -> list[Limit]:
    """Raise `BadOption` for what is not a limit."""
    return [_limit(part) for part in text.split(",") if part.strip()] or [_limit(text)]


def _limit(text: str) -> Limit:
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise BadOption(
            f"{text.strip()!r} is not a limit",
            fix="write a metric, one of > >= < <= == !=, and a number, as in "
            '--fail-on "spills>0,bytes>20MB"; the metrics are ' + ", ".join(METRICS),
        )
    name, comparison, number, unit = match.groups()
    if name not in METRICS:
        known = "\n".join(f"    {name}: {metric.about}" for name, metric in METRICS.items())
        raise BadOption(f"there is no metric {name!r}", fix=f"choose one of\n{known}")
    if unit and not METRICS[name].is_bytes:
        raise BadOption(
            f"{name} has no unit, but {text.strip()!r} has {unit!r}", fix=f"leave out {unit!r}"
        )
    if unit.lower() not in _UNITS:
        raise BadOption(
            f"{unit!r} is not a unit of bytes", fix="use B, kB, MB, GB, KiB, MiB or GiB"
        )
    return Limit(name, comparison, float(number) * _UNITS[unit.lower()], text.strip())


def judge(
    report: Report, changes: Changes | None, limits: Iterable[Limit], older: Report | None = None
) -> tuple[Judged, ...]:
    """Hold a report against limits; a metric that it has no data for is an error, not a pass.

    `older` is the report that `changes` are since.
    """
    return tuple(_judge(report, changes, limit, older) for limit in limits)


def _judge(report: Report, changes: Changes | None, limit: Limit, older: Report | None) -> Judged:
    metric, source = METRICS[limit.metric], report.source
    why = metric.refusal(older, report) if older is not None else ""
    if older is not None and why:
        raise BadOption(
            f"--fail-on {limit.text}: {source} cannot be compared with {older.source}",
            found=why,
            fix="compare two builds of the same kernels for the same architectures, with counts of "
            f"launches for both or for neither, or leave out {limit.text}",
        )
    if metric.needs == _LAUNCHES and report.launched is not None and not report.has_launches:
        raise BadOption(
            f"--fail-on {limit.text}: no launch was counted in {source}",
            fix=f"count those of a program that launches kernels: {COUNTING}",
        )
    rows = metric.rows(report, changes)
    if rows is None:
        raise BadOption(
            f"--fail-on {limit.text}: {source} does not tell {limit.metric}",
            fix=f"add {metric.needs}",
        )
    is_beyond = _COMPARISONS[limit.comparison]
    beyond = [
        (what, text)
        for what, value, text in rows
        if value is None or is_beyond(value, limit.number)
    ]
    return Judged(limit.text, tuple(beyond))


def _of_images(kind: str) -> Rows:
    def rows(report: Report, _: Changes | None) -> list[Row] | None:
        values = [(what, value) for (of, what), value in facts(report) if of == kind]
        unknown = "not known: its image has no record of it"
        found = [(what, value, unknown if value is None else str(value)) for what, value in values]
        return found if report.builds else None

    return rows


def _total(name: str, unit: str = "") -> Rows:
    def rows(report: Report, _: Changes | None) -> list[Row] | None:
        value = report.totals().get(name)
        return None if value is None else [(_named(report), value, f"{value}{unit}")]

    return rows


def _named(report: Report) -> str:
    return ", ".join(build.name for build in report.builds) or report.source


def _counted(report: Report, rows: list[tuple[str, str]], number: int) -> list[Row]:
    """The limit is for all of them; what is shown says which they are."""
    return [(what, number, text) for what, text in rows] or [(report.source, 0, "0")]


def _uncovered(report: Report, _: Changes | None) -> list[Row] | None:
    if not report.knows_coverage:
        return None
    gaps = report.gaps
    launches = sum(gap.launches for gap in gaps)
    return _counted(report, [(gap.what, gap.why) for gap in gaps], launches)


def _failed(report: Report, _: Changes | None) -> list[Row] | None:
    failed = [row for row in report.checked or () if row.status == "fail"]
    rows = [(f"{row.op}, {row.row}", row.reason) for row in failed]
    return _counted(report, rows, len(rows)) if report.checked else None


def _worse(kind: str) -> Rows:
    def rows(report: Report, changes: Changes | None) -> list[Row] | None:
        if changes is None or (kind == "spills" and not report.builds):
            return None
        worse = [change for change in changes if (change.kind, change.verdict) == (kind, WORSE)]
        texts = [(change.what, f"{change.before} -> {change.after}") for change in worse]
        return _counted(report, texts, len(texts))

    return rows


def _growth(report: Report, changes: Changes | None) -> list[Row] | None:
    if changes is None or not report.builds:
        return None
    sizes = [change for change in changes if change.kind == "size"]
    growth = sum((change.after or 0) - (change.before or 0) for change in sizes)
    return [(_named(report), growth, f"{growth:+} bytes")]


COUNTING = (
    "`opforge serve --counts counts.json kernels -- COMMAND`, or `opforge.served().to_json()` at "
    "its end"
)
_LAUNCHES = f"what a program launched: {COUNTING}"
_TWO = "the older build before it: opforge report OLD NEW"
METRICS = {
    "spills": Metric("4-byte words that a thread spills, of every image", _of_images("spills")),
    "registers": Metric("registers of a thread, of every image", _of_images("registers")),
    "shared": Metric("bytes of shared memory, of every image", _of_images("shared"), is_bytes=True),
    "bytes": Metric("size of what is shipped", _total("bytes", " bytes"), is_bytes=True),
    "variants": Metric("number of compiled variants", _total("variants")),
    "uncovered": Metric(
        "paths and architectures that are not built, and launches by Triton", _uncovered, _LAUNCHES
    ),
    "general": Metric("launches by the general variant", _total("general"), _LAUNCHES),
    "failed": Metric("rows of a check that failed", _failed, "a file of `opforge check --json`"),
    "new_spills": Metric(
        "images that spill more than in the older build", _worse("spills"), _TWO, refusal=unlike
    ),
    "new_uncovered": Metric(
        "gaps that the older build did not have", _worse("coverage"), _TWO, refusal=no_coverage
    ),
    "grown_bytes": Metric(
        "how much larger than the older build", _growth, _TWO, is_bytes=True, refusal=unlike
    ),
}
