"""`--fail-on "spills>0,bytes>20MB,uncovered>0"`: limits, and the rows that are beyond them."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import BadOption
from .changes import Change, grown_bytes, new_gaps, new_spills
from .facts import all_images, gaps, has_launches, knows_coverage, named, totals
from .likeness import no_coverage, no_growth
from .model import Report

# A row that a limit is checked against: what it is called, its number, and what is said of it.
# Without a number it is not known, and beyond any limit.
Row = tuple[str, int | None, str]


@dataclass(frozen=True)
class Metric:
    """`rows` are all that the limit is checked against; None where the report cannot tell."""

    name: str
    about: str
    rows: Callable[[Report, tuple[Change, ...] | None], list[Row] | None]
    needs: str = "a build: the folder of `opforge build`"
    # Whether numbers may have a unit of bytes.
    is_bytes: bool = False
    # Whether counts of launches, where they are given, must have one.
    is_launches: bool = False
    # Of what is compared: why these two cannot be, or nothing.
    refusal: Callable[[Report, Report], str] | None = None


@dataclass(frozen=True)
class Limit:
    """What a report must not exceed: `bytes > 20MB`."""

    metric: Metric
    comparison: str
    number: float
    text: str

    def is_beyond(self, value: int) -> bool:
        return bool(_COMPARISONS[self.comparison](value, self.number))


@dataclass(frozen=True)
class Judged:
    """A limit, and the rows beyond it: what, and how much."""

    limit: str
    beyond: tuple[tuple[str, str], ...]

    @property
    def ok(self) -> bool:
        return not self.beyond

    def __str__(self) -> str:
        if self.ok:
            return f"{self.limit}: ok"
        shown = [f"  {what}: {amount}" for what, amount in self.beyond[:_MOST_ROWS]]
        more = len(self.beyond) - len(shown)
        rest = [f"  and {more} more"] if more else []
        return "\n".join([f"{self.limit}: failed", *shown, *rest])


# The page and JSON have them all.
_MOST_ROWS = 20
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
    found = _LIMIT.fullmatch(text)
    if found is None:
        raise BadOption(
            f"{text.strip()!r} is not a limit",
            fix="write a metric, one of > >= < <= == !=, and a number, as in "
            '--fail-on "spills>0,bytes>20MB"; the metrics are ' + ", ".join(_BY_NAME),
        )
    name, comparison, number, unit = found.groups()
    metric = _BY_NAME.get(name)
    if metric is None:
        known = "\n".join(f"    {one.name}: {one.about}" for one in METRICS)
        raise BadOption(f"there is no metric {name!r}", fix=f"choose one of\n{known}")
    if unit and not metric.is_bytes:
        raise BadOption(
            f"{name} has no unit, but {text.strip()!r} has {unit!r}", fix=f"leave out {unit!r}"
        )
    if unit.lower() not in _UNITS:
        raise BadOption(
            f"{unit!r} is not a unit of bytes", fix="use B, kB, MB, GB, KiB, MiB or GiB"
        )
    return Limit(metric, comparison, float(number) * _UNITS[unit.lower()], text.strip())


def judge(
    report: Report,
    changes: tuple[Change, ...] | None,
    limits: list[Limit],
    older: Report | None = None,
) -> tuple[Judged, ...]:
    """Hold a report against limits; a metric that it has no data for is an error, not a pass.

    `older` is the report that `changes` are since.
    """
    if older is not None:
        for limit in limits:
            _refuse_unlike(older, report, limit)
    return tuple(_judge(report, changes, limit) for limit in limits)


def _refuse_unlike(older: Report, report: Report, limit: Limit) -> None:
    refusal = limit.metric.refusal
    why = "" if refusal is None else refusal(older, report)
    if why:
        raise BadOption(
            f"--fail-on {limit.text}: {report.source} cannot be compared with {older.source}",
            found=why,
            fix="compare two builds of the same kernels for the same architectures, with counts of "
            f"launches for both or for neither, or leave out {limit.text}",
        )


def _judge(report: Report, changes: tuple[Change, ...] | None, limit: Limit) -> Judged:
    if limit.metric.is_launches and report.launched is not None and not has_launches(report):
        raise BadOption(
            f"--fail-on {limit.text}: no launch was counted in {report.source}",
            fix=f"count those of a program that launches kernels: {COUNTING}",
        )
    rows = limit.metric.rows(report, changes)
    if rows is None:
        raise BadOption(
            f"--fail-on {limit.text}: {report.source} does not tell {limit.metric.name}",
            fix=f"add {limit.metric.needs}",
        )
    beyond = [(what, said) for what, value, said in rows if value is None or limit.is_beyond(value)]
    return Judged(limit.text, tuple(beyond))


def _of_images(field: str) -> Callable[[Report, tuple[Change, ...] | None], list[Row] | None]:
    def rows(report: Report, _: tuple[Change, ...] | None) -> list[Row] | None:
        if not report.builds:
            return None
        return [
            (named(variant, image), *_known(image.registers, getattr(image, field), field))
            for variant, image in all_images(report)
        ]

    return rows


def _known(registers: int, value: int, field: str) -> tuple[int | None, str]:
    """Every kernel uses registers; an image without has no record of what it uses."""
    if not registers and field != "shared":
        return None, "not known: its image has no record of it"
    return value, str(value)


def _sizes(report: Report, _: tuple[Change, ...] | None) -> list[Row] | None:
    if not report.builds:
        return None
    whole = totals(report)["bytes"]
    return [(", ".join(build.name for build in report.builds), whole, f"{whole} bytes")]


def _counted(name: str) -> Callable[[Report, tuple[Change, ...] | None], list[Row] | None]:
    def rows(report: Report, _: tuple[Change, ...] | None) -> list[Row] | None:
        value = totals(report).get(name)
        return None if value is None else [(report.source, value, str(value))]

    return rows


def _uncovered(report: Report, _: tuple[Change, ...] | None) -> list[Row] | None:
    if not knows_coverage(report):
        return None
    found = gaps(report)
    whole = sum(gap.launches for gap in found)
    # The limit is for all of them; what is shown says which they are.
    shown: list[Row] = [(gap.what, whole, gap.why) for gap in found]
    return shown or [(report.source, 0, "0")]


def _failed(report: Report, _: tuple[Change, ...] | None) -> list[Row] | None:
    if not report.checked:
        return None
    failed = [row for row in report.checked if row.status == "fail"]
    shown: list[Row] = [(f"{row.op}, {row.row}", len(failed), row.reason) for row in failed]
    return shown or [(report.source, 0, "0")]


def _changed(
    pick: Callable[[tuple[Change, ...]], list[Change]],
) -> Callable[[Report, tuple[Change, ...] | None], list[Row] | None]:
    def rows(report: Report, changes: tuple[Change, ...] | None) -> list[Row] | None:
        if changes is None:
            return None
        found = pick(changes)
        shown: list[Row] = [(one.what, len(found), f"{one.before} -> {one.after}") for one in found]
        return shown or [(report.source, 0, "0")]

    return rows


def _growth(report: Report, changes: tuple[Change, ...] | None) -> list[Row] | None:
    if changes is None:
        return None
    grown = grown_bytes(changes)
    return [(", ".join(build.name for build in report.builds), grown, f"{grown:+} bytes")]


COUNTING = (
    "`opforge serve --counts counts.json kernels -- COMMAND`, or `opforge.served().to_json()` at "
    "its end"
)
_LAUNCHES = f"what a program launched: {COUNTING}"
_TWO = "the older build before it: opforge report OLD NEW"
METRICS = (
    Metric("spills", "4-byte words that a thread spills, of every image", _of_images("spills")),
    Metric("registers", "registers of a thread, of every image", _of_images("registers")),
    Metric("shared", "bytes of shared memory, of every image", _of_images("shared"), is_bytes=True),
    Metric("bytes", "size of what is shipped", _sizes, is_bytes=True),
    Metric("variants", "number of compiled variants", _counted("variants")),
    Metric(
        "uncovered", "paths and architectures that are not built, and launches by Triton",
        _uncovered, _LAUNCHES, is_launches=True,
    ),
    Metric(
        "general", "launches by the general variant", _counted("general"), _LAUNCHES,
        is_launches=True,
    ),
    Metric("failed", "rows of a check that failed", _failed, "a file of `opforge check --json`"),
    Metric(
        "new_spills", "images that spill more than in the older build", _changed(new_spills), _TWO,
        refusal=no_growth,
    ),
    Metric(
        "new_uncovered", "gaps that the older build did not have", _changed(new_gaps), _TWO,
        refusal=no_coverage,
    ),
    Metric(
        "grown_bytes", "how much larger than the older build", _growth, _TWO, is_bytes=True,
        refusal=no_growth,
    ),
)  # fmt: skip
_BY_NAME = {metric.name: metric for metric in METRICS}
