"""What has changed between two reports, as a flat list that people sort and search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from ..tuning.table import TunedKernel, TuningRow
from .facts import all_images, gaps, has_launches, named
from .likeness import no_growth
from .model import Checked, Report, ReportedCase, ReportedImage

T = TypeVar("T")
Shown = int | float | str | None

WORSE, BETTER = "worse", "better"
# Times differ by this much from run to run, so less is neither better nor worse.
_NOISE = 0.05
THERE, ADDED, REMOVED = "there", "added", "removed"


@dataclass(frozen=True)
class Change:
    """One thing that is not as it was.

    `kind` is operator, case, image, registers, spills, shared, bytes, size, coverage, general,
    check, config or time; `before` is None for what is new, `after` is "removed", or None where it
    would be a number, for what is gone.
    """

    kind: str
    what: str
    before: Shown
    after: Shown
    verdict: str = ""


def compare(old: Report, new: Report) -> tuple[Change, ...]:
    """Everything that differs, what is worse first."""
    found = (
        *_sizes(old, new),
        *_operators(old, new),
        *_images(old, new),
        *_coverage(old, new),
        *_launches(old, new),
        *_checks(old, new),
        *_tuning(old, new),
        *_times(old, new),
    )
    return tuple(sorted(found, key=lambda one: one.verdict != WORSE))


def new_spills(changes: tuple[Change, ...]) -> list[Change]:
    return [one for one in changes if one.kind == "spills" and one.verdict == WORSE]


def new_gaps(changes: tuple[Change, ...]) -> list[Change]:
    return [one for one in changes if one.kind == "coverage" and one.verdict == WORSE]


def grown_bytes(changes: tuple[Change, ...]) -> int:
    sizes = [one for one in changes if one.kind == "size"]
    return sum(int(one.after or 0) - int(one.before or 0) for one in sizes)


def _pairs(old: Mapping[str, T], new: Mapping[str, T]) -> Iterator[tuple[str, T | None, T | None]]:
    """Those of either, in the order of the new one; what is gone comes last."""
    for name in dict.fromkeys((*new, *old)):
        yield name, old.get(name), new.get(name)


def _presence(kind: str, old: Mapping[str, T], new: Mapping[str, T]) -> Iterator[Change]:
    for name, before, after in _pairs(old, new):
        if before is None:
            yield Change(kind, name, None, ADDED)
        elif after is None:
            yield Change(kind, name, THERE, REMOVED)


def _number(kind: str, what: str, before: int | None, after: int | None) -> Iterator[Change]:
    """Of all numbers here, less is better."""
    if before != after:
        worse = (after or 0) > (before or 0)
        yield Change(kind, what, before, after, WORSE if worse else BETTER)


def _sizes(old: Report, new: Report) -> Iterator[Change]:
    sizes = [{build.name: build.bytes for build in report.builds} for report in (old, new)]
    if all(len(one) == 1 for one in sizes):
        # The folder of served kernels may have any name, and a library may be renamed.
        sizes[0] = dict(zip(sizes[1], sizes[0].values(), strict=True))
    for name, before, after in _pairs(*sizes):
        for one in _number("size", name, before, after):
            # Another thing is neither better nor worse.
            yield replace(one, verdict="") if no_growth(old, new) else one


def _operators(old: Report, new: Report) -> Iterator[Change]:
    operators = [
        {one.name: one for build in report.builds for one in build.operators}
        for report in (old, new)
    ]
    yield from _presence("operator", *operators)
    yield from _presence("case", _cases(old), _cases(new))


def _cases(report: Report) -> dict[str, ReportedCase]:
    return {
        f"{operator.name}, {case.case}": case
        for build in report.builds
        for operator in build.operators
        for case in operator.cases
    }


def _images(old: Report, new: Report) -> Iterator[Change]:
    found = [_named_images(report) for report in (old, new)]
    yield from _presence("image", *found)
    for name, before, after in _pairs(*found):
        if after is None:
            continue
        if before is None:
            # What is added and spills is a new spill.
            yield from _number("spills", name, None, after.spills or None)
            continue
        # Without registers the image has no record of either.
        known = before.registers and after.registers
        for kind in ("spills", "registers", "shared", "bytes") if known else ("shared", "bytes"):
            yield from _number(kind, name, getattr(before, kind), getattr(after, kind))


def _named_images(report: Report) -> dict[str, ReportedImage]:
    """By a name that holds in both builds; keys of kernels change with every edit."""
    found: dict[str, ReportedImage] = {}
    for variant, image in all_images(report):
        name, number = named(variant, image), 2
        while name in found:
            name, number = f"{named(variant, image)} #{number}", number + 1
        found[name] = image
    return found


def _coverage(old: Report, new: Report) -> Iterator[Change]:
    if not (has_launches(old) and has_launches(new)):
        # A kernel whose launches nobody has counted is not covered for that.
        old, new = replace(old, launched=None), replace(new, launched=None)
    before, after = ({gap.what: gap for gap in gaps(report)} for report in (old, new))
    for what, was, now in _pairs(before, after):
        if was is None and now is not None:
            yield Change("coverage", what, "covered" if _has(old, what) else None, now.why, WORSE)
        elif was is not None and now is None:
            covered = _has(new, what)
            verdict = BETTER if covered else ""
            yield Change("coverage", what, was.why, "covered" if covered else REMOVED, verdict)


def _has(report: Report, what: str) -> bool:
    """Whether there is the case, the image or the launched kernel that a gap of another is in."""
    return (
        what in _cases(report)
        or what in _named_images(report)
        or any(one.kernel == what for one in report.launched or ())
    )


def _launches(old: Report, new: Report) -> Iterator[Change]:
    before, after = (
        {one.kernel: one.general for one in report.launched or ()} for report in (old, new)
    )
    for kernel, was, now in _pairs(before, after):
        if was is not None and now is not None:
            yield from _number("general", kernel, was, now)


def _checks(old: Report, new: Report) -> Iterator[Change]:
    before, after = (
        {f"{row.op}, {row.row}": row for row in report.checked or ()} for report in (old, new)
    )
    for what, was, now in _pairs(before, after):
        if _status(was) != _status(now):
            verdict = WORSE if _status(now) == "fail" else BETTER if _status(was) == "fail" else ""
            yield Change("check", what, _status(was), _status(now), verdict)


def _status(row: Checked | None) -> str | None:
    return None if row is None else row.status


def _tuning(old: Report, new: Report) -> Iterator[Change]:
    before, after = (_tuned(report) for report in (old, new))
    for what, was, now in _pairs(before, after):
        if was is None or now is None:
            continue
        if was.config != now.config:
            yield Change("config", what, _config(was), _config(now))
        yield from _time(what, was.us, now.us)


def _tuned(report: Report) -> dict[str, TuningRow]:
    """Whatever the source of the kernel was."""
    return {
        f"{kernel}, {at_text(kernel, row)}": row
        for kernel, rows in report.tuning.rows.items()
        for row in rows.values()
    }


def at_text(kernel: TunedKernel, row: TuningRow) -> str:
    """`m=16, n=4096`."""
    return ", ".join(f"{name}={value}" for name, value in zip(kernel.key, row.at, strict=True))


def _config(row: TuningRow) -> str:
    return ", ".join(f"{name}={value}" for name, value in row.config)


def _times(old: Report, new: Report) -> Iterator[Change]:
    before, after = (
        {
            f"{timed.op} {timed.dtype}, {label}".replace(" ,", ","): us
            for timed in report.times
            for label, us in timed.microseconds.items()
        }
        for report in (old, new)
    )
    for what, was, now in _pairs(before, after):
        if was is not None and now is not None:
            yield from _time(what, was, now)


def _time(what: str, before: float, after: float) -> Iterator[Change]:
    if before == after:
        return
    verdict = ""
    if abs(after - before) > _NOISE * before:
        verdict = WORSE if after > before else BETTER
    yield Change("time", what, before, after, verdict)
