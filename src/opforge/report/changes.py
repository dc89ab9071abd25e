"""What has changed between two reports, and whether they are of one build at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from .model import LIBRARY, Report, listed

WORSE, BETTER = "worse", "better"
# Times differ by this much from run to run, so less is neither better nor worse.
_NOISE = 0.05
# What comes and goes.
_PRESENCE = ("operator", "case", "image")
# In the order in which they are shown.
_KINDS = (
    *("size", *_PRESENCE, "spills", "registers", "shared", "bytes"),
    *("coverage", "general", "check", "config", "time"),
)


@dataclass(frozen=True)
class Change:
    """One thing that is not as it was.

    `kind` is operator, case, image, registers, spills, shared, bytes, size, coverage, general,
    check, config or time; `before` is None for what is new, `after` is "removed", or None where it
    would be a number, for what is gone.
    """

    kind: str
    what: str
    before: Any
    after: Any
    verdict: str = ""


# By kind and by what it is of: a number, a text, or None where it is not known.
Facts = dict[tuple[str, str], Any]


def compare(old: Report, new: Report) -> tuple[Change, ...]:
    """Everything that differs, what is worse first."""
    if not (old.has_launches and new.has_launches):
        # A kernel whose launches nobody has counted is not covered for that.
        old, new = replace(old, launched=None), replace(new, launched=None)
    before, after = dict(facts(old)), dict(facts(new))
    if len(old.builds) == len(new.builds) == 1:
        # The folder of served kernels may have any name, and a library may be renamed.
        before["size", new.builds[0].name] = before.pop(("size", old.builds[0].name))
    differing = [key for key in {**after, **before} if before.get(key) != after.get(key)]
    changes = [change for key in differing if (change := _change(*key, before, after)) is not None]
    if unlike(old, new):
        # The size of another thing is neither better nor worse.
        changes = [replace(c, verdict="") if c.kind == "size" else c for c in changes]
    return tuple(sorted(changes, key=lambda c: (c.verdict != WORSE, _KINDS.index(c.kind))))


def _change(kind: str, what: str, before: Facts, after: Facts) -> Change | None:
    was, now = before.get((kind, what)), after.get((kind, what))
    if kind in _PRESENCE:
        return Change(kind, what, was, "removed" if now is None else "added")
    if kind == "coverage":
        return _coverage(what, was, now, before, after)
    # What is added and spills is a new spill.
    is_new_spill = kind == "spills" and (kind, what) not in before and now
    if kind in {"size", "check"} or is_new_spill or None not in {was, now}:
        return Change(kind, what, was, now, _verdict(kind, was, now))
    return None


def _coverage(what: str, was: Any, now: Any, before: Facts, after: Facts) -> Change | None:
    if was is None:
        return Change("coverage", what, "covered" if _has(before, what) else None, now, WORSE)
    if now is None and _has(after, what):
        return Change("coverage", what, was, "covered", BETTER)
    return Change("coverage", what, was, "removed") if now is None else None


def _has(facts: Facts, what: str) -> bool:
    """Whether there is the case, the image or the launched kernel that a gap of another is in."""
    return any((kind, what) in facts for kind in ("case", "image", "general"))


def _verdict(kind: str, was: Any, now: Any) -> str:
    if kind == "check":
        return WORSE if now == "fail" else BETTER if was == "fail" else ""
    if kind == "config":
        return ""
    # Of all numbers here, less is better.
    change = (now or 0) - (was or 0)
    if kind == "time" and abs(change) <= _NOISE * was:
        return ""
    return WORSE if change > 0 else BETTER


def facts(report: Report) -> Iterator[tuple[tuple[str, str], Any]]:
    """By kind and by what it is of: a number, a text, or None where it is not known."""
    for build in report.builds:
        yield ("size", build.name), build.bytes
        for operator in build.operators:
            yield ("operator", operator.name), "there"
            for case in operator.cases:
                yield ("case", f"{operator.name}, {case.case}"), "there"
    yield from _image_facts(report)
    yield from ((("coverage", gap.what), gap.why) for gap in report.gaps)
    yield from ((("general", kernel.kernel), kernel.general) for kernel in report.launched or ())
    yield from ((("check", f"{row.op}, {row.row}"), row.status) for row in report.checked or ())
    yield from _time_facts(report)


def _image_facts(report: Report) -> Iterator[tuple[tuple[str, str], Any]]:
    """By names that hold in both builds; keys of kernels change with every edit."""
    names: dict[str, int] = {}
    for variant, image in report.images:
        name = f"{variant} {image.arch}"
        names[name] = number = names.get(name, 0) + 1
        name += f" #{number}" if number > 1 else ""
        yield ("image", name), "there"
        # Without registers the image has no record of either.
        yield ("spills", name), image.spills if image.registers else None
        yield ("registers", name), image.registers or None
        yield ("shared", name), image.shared
        yield ("bytes", name), image.bytes


def _time_facts(report: Report) -> Iterator[tuple[tuple[str, str], Any]]:
    # Whatever the source of the kernel was.
    for tuned, rows in report.tuning.rows.items():
        for best in rows.values():
            where = f"{tuned}, {listed(zip(tuned.key, best.at, strict=True))}"
            yield ("config", where), listed(best.config)
            yield ("time", where), best.us
    for timed in report.times:
        for label, us in timed.microseconds.items():
            yield ("time", f"{' '.join(filter(None, (timed.op, timed.dtype)))}, {label}"), us


def unlike(old: Report, new: Report) -> str:
    """Why two reports are not of two states of one build; empty if they are, or have none."""
    without = [report.source for report in (old, new) if not report.builds]
    if without:
        return f"{without[0]} has no build" if len(without) == 1 else ""
    if _archs(old) & _archs(new) and _parts(old) & _parts(new):
        return ""
    before, after = (
        f"{', '.join(f'{b.name} ({b.kind})' for b in report.builds)} for "
        f"{', '.join(sorted(_archs(report)))}"
        for report in (old, new)
    )
    return f"{before} and {after} have no kernel or no architecture in common"


def _archs(report: Report) -> set[str]:
    return {arch for build in report.builds for arch in build.archs}


def _parts(report: Report) -> set[tuple[str, str]]:
    """What an edited build keeps: its kernels, and the name of a library."""
    kernels = {(b.kind, variant.kernel) for b in report.builds for variant in b.variants}
    # The folder of served kernels may have any name.
    return kernels | {(LIBRARY, build.name) for build in report.builds if build.kind == LIBRARY}


def no_coverage(old: Report, new: Report) -> str:
    """Why gaps cannot be compared; empty if they can be."""
    for report in (old, new):
        if not report.knows_coverage:
            return f"{report.source} does not tell what is covered"
    if old.has_launches != new.has_launches:
        return f"only {(old if old.has_launches else new).source} has launches"
    return unlike(old, new)
