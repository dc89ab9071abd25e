"""`opforge report`: what the command reads, writes and says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import BadOption, OutputNotWritable
from ..notebook import size
from ..tuning.table import TunedKernel, TuningRow
from .changes import BETTER, WORSE, Change, compare, unlike
from .limits import COUNTING, Judged, judge, parse_limits
from .model import LIBRARY, Build, Checked, Launched, Report, Timed, listed
from .page import (
    BAD,
    CODE,
    DIM,
    GOOD,
    NAME,
    NUMBER,
    WARN,
    Cell,
    Column,
    Section,
    Table,
    Tile,
    count,
    duration,
    heat_maps,
    plot,
    render,
    table,
)
from .read import read_all


@dataclass(frozen=True)
class Outcome:
    """A report, what has changed since an older one, and the limits that it was checked against."""

    report: Report
    since: str = ""
    changes: tuple[Change, ...] | None = None
    judged: tuple[Judged, ...] = ()
    # Why the older one is not of the same build.
    unlike: str = ""

    @property
    def ok(self) -> bool:
        return all(limit.ok for limit in self.judged)

    def to_json(self) -> str:
        content: dict[str, Any] = {**self.report.to_content(), "totals": self.report.totals()}
        if self.changes is not None:
            content |= {"since": self.since, "unlike": self.unlike}
            content["changes"] = [asdict(change) for change in self.changes]
        if self.judged:
            content["limits"] = [
                {"limit": j.limit, "ok": j.ok, "beyond": [list(row) for row in j.beyond]}
                for j in self.judged
            ]
        return json.dumps(content, indent=1) + "\n"

    def to_html(self) -> str:
        since = f", compared with {self.since}" if self.since else ""
        return render(
            ", ".join(build.name for build in self.report.builds) or "Report",
            f"Report of {self.report.source}{since}, written by opforge {__version__}",
            _tiles(self),
            [*_sections(self)],
            f"These are not two states of one build: {self.unlike}." if self.unlike else "",
        )

    def __str__(self) -> str:
        lines = [f"{b.name}: {b.kind} for {', '.join(b.archs)}" for b in self.report.builds]
        lines += filter(None, ["; ".join(f"{tile.label}: {tile.text}" for tile in _tiles(self))])
        lines += [f"measured operators: {len(self.report.times)}"] if self.report.times else []
        if self.changes is not None:
            worse = [change for change in self.changes if change.verdict == WORSE]
            lines += [f"note: {self.unlike}"] if self.unlike else []
            lines += [
                f"since {self.since}: {len(self.changes)} changes, {len(worse)} for the worse"
            ]
            lines += [
                f"  {c.kind}: {c.what}: {_text(c.before)} -> {_text(c.after)}"
                for c in worse[:_MOST_CHANGES]
            ]
            more = len(worse) - _MOST_CHANGES
            lines += [f"  and {more} more"] if more > 0 else []
        for limit in self.judged:
            lines += [f"{limit.limit}: {'ok' if limit.ok else 'failed'}"]
            lines += [f"  {line}" for line in limit.lines(_MOST_ROWS)]
        return "\n".join(lines)


def _text(value: object) -> str:
    return "none" if value is None else str(value)


# The page and JSON have them all.
_MOST_CHANGES, _MOST_ROWS = 12, 20


def make(sources: Sequence[str], fail_on: str | None = None) -> Outcome:
    """Read what the command was given, and check it against limits."""
    limits = [] if fail_on is None else parse_limits(fail_on)
    *older, report = read_all(sources)
    if not older:
        return Outcome(report, judged=judge(report, None, limits))
    (old,) = older
    changes = compare(old, report)
    judged = judge(report, changes, limits, old)
    return Outcome(report, old.source, changes, judged, unlike(old, report))


def write(outcome: Outcome, output: str) -> None:
    """A page or JSON, by the ending of the file's name."""
    is_json = Path(output).suffix.lower() == ".json"
    text = outcome.to_json() if is_json else outcome.to_html()
    try:
        # What was read may hold halves of characters that no file can.
        Path(output).write_bytes(text.encode(errors="backslashreplace"))
    except OSError as error:
        raise OutputNotWritable(
            f"{output} cannot be written: {error.strerror}", fix="choose another file with -o"
        ) from error


def check_output(output: str | None) -> None:
    """Raise before anything is read."""
    if output is not None and Path(output).suffix.lower() not in {".html", ".htm", ".json"}:
        raise BadOption(f"-o {output} must end in .html or .json")


# What a total is called, and whether any of it is good or bad.
_TILES = {
    "operators": ("operators", ""),
    "cases": ("cases", ""),
    "variants": ("variants", ""),
    "images": ("images", ""),
    "bytes": ("size", ""),
    "registers": ("most registers", ""),
    "shared": ("most shared memory", ""),
    "spilling": ("images that spill", BAD),
    "uncovered": ("not covered", BAD),
    "launches": ("launches", ""),
    "general": ("by general variants", WARN),
    "tuned": ("tuned rows", ""),
    "checks": ("check rows", ""),
    "failed": ("check rows that failed", BAD),
}
_SIZES = {"bytes", "shared"}


def _tiles(outcome: Outcome) -> Iterator[Tile]:
    for name, value in outcome.report.totals().items():
        label, verdict = _TILES[name]
        css = (verdict if value else GOOD) if verdict else ""
        if name == "launches" and not value:
            css = WARN
        yield Tile(label, size(value) if name in _SIZES else f"{value:,}", css)
    if outcome.changes is not None:
        worse = sum(change.verdict == WORSE for change in outcome.changes)
        yield Tile("changes for the worse", f"{worse:,}", BAD if worse else GOOD)


def _sections(outcome: Outcome) -> Iterator[Table | Section]:
    report = outcome.report
    if outcome.judged:
        yield _limit_table(outcome.judged)
    if outcome.changes is not None:
        yield _change_table(outcome.changes)
    if report.gaps:
        columns: list[Column] = [
            ("what", CODE, lambda gap: gap.what),
            ("why", "", lambda gap: gap.why),
            ("count", NUMBER, lambda gap: count(gap.launches, BAD)),
        ]
        about = (
            "Paths that a library refuses, variants that an architecture lacks, and launches that "
            "Triton had to make."
        )
        yield table("uncovered", "Not covered", columns, report.gaps, about)
    for number, build in enumerate(report.builds, 1):
        yield _build(build, number)
    if report.launched is not None:
        yield _launch_table(report.launched, has_launches=report.has_launches)
    if report.tuning.rows:
        tables = [
            _tuning_table(number, kernel, list(rows.values()))
            for number, (kernel, rows) in enumerate(report.tuning.rows.items(), 1)
        ]
        about = (
            "The time of the best configuration, by the values of the kernel's key; warmer is "
            "slower. Hold the pointer over a cell to see its configuration."
        )
        yield Section("tuning", "Tuning", about, tuple(tables))
    if report.times:
        yield _time_table(report.times)
    if report.checked is not None:
        yield _check_table(report.checked)


# Of what is beyond a limit; the tables below have every row.
_MOST_BEYOND = 3


def _limit_table(judged: Iterable[Judged]) -> Table:
    columns: list[Column] = [
        ("fail on", NAME, lambda j: j.limit),
        ("verdict", "", lambda j: Cell("ok", css=GOOD) if j.ok else Cell("failed", css=BAD)),
        ("because of", CODE, lambda j: "\n".join(j.lines(_MOST_BEYOND))),
    ]
    return table("limits", "Limits", columns, judged)


def _change_table(changes: Iterable[Change]) -> Table:
    def state(value: Any, kind: str) -> Cell | str | int:
        if value is None:
            return Cell("none", css=DIM)
        return Cell(duration(value), value) if kind == "time" else value

    verdicts = {WORSE: BAD, BETTER: GOOD}
    columns: list[Column] = [
        ("kind", "", lambda c: c.kind),
        ("what", CODE, lambda c: c.what),
        ("before", NUMBER, lambda c: state(c.before, c.kind)),
        ("after", NUMBER, lambda c: state(c.after, c.kind)),
        ("verdict", "", lambda c: Cell(c.verdict, css=verdicts.get(c.verdict, ""))),
    ]
    about = "Images are compared by kernel, types, constants and options, whatever was edited."
    return table("changes", "What changed", columns, changes, about)


def _build(build: Build, number: int) -> Section:
    kind = "A library" if build.kind == LIBRARY else "Served kernels"
    versions = ", ".join(f"{name} {version}" for name, version in build.versions.items())
    suffix = f", made with {versions}" if versions else ""
    about = f"{kind} for {', '.join(build.archs)}, {size(build.bytes)}{suffix}."
    tables = [_image_table(build, number)]
    if build.operators:
        tables = [_operator_table(build, number), _case_table(build, number), *tables]
    if build.notes:
        columns: list[Column] = [("note", "", str)]
        tables.append(table(f"notes-{number}", "Notes of the build", columns, build.notes))
    return Section(f"build-{number}", build.name, about, tuple(tables))


def _operator_table(build: Build, number: int) -> Table:
    columns: list[Column] = [
        ("operator", NAME, lambda op: op.torch_name or op.name),
        ("cases", NUMBER, lambda op: len(op.cases)),
        ("paths", NUMBER, lambda op: sum(case.paths for case in op.cases)),
        ("variants", NUMBER, lambda op: sum(op.name in v.operators for v in build.variants)),
        ("not covered", NUMBER, lambda op: count(sum(len(c.uncovered) for c in op.cases), BAD)),
        ("covers", CODE, lambda op: op.covers),
        ("about", "", lambda op: "\n".join(filter(None, (op.doc, op.location)))),
    ]
    return table(f"operators-{number}", "Operators", columns, build.operators)


def _case_table(build: Build, number: int) -> Table:
    def texts(values: Sequence[str], css: str = "") -> Cell:
        return Cell("\n".join(values), len(values), css if values else "")

    columns: list[Column] = [
        ("operator", NAME, lambda row: row[0].name),
        ("case", CODE, lambda row: row[1].case),
        ("paths", NUMBER, lambda row: row[1].paths),
        ("not covered", "", lambda row: texts(row[1].uncovered, BAD)),
        ("raises, as the body does", "", lambda row: texts(row[1].raises)),
    ]
    rows = [(operator, case) for operator in build.operators for case in operator.cases]
    return table(f"cases-{number}", "Cases", columns, rows)


def _image_table(build: Build, number: int) -> Table:
    unknown = Cell("?", -1, DIM)
    columns: list[Column] = [
        ("kernel", NAME, lambda row: row[0].kernel),
        ("types", CODE, lambda row: ", ".join(row[0].types)),
        ("constants and options", CODE, lambda row: row[0].constants_text),
        ("operators", "", lambda row: ", ".join(row[0].operators)),
        ("arch", "", lambda row: row[1].arch),
        ("warps", NUMBER, lambda row: row[1].num_warps),
        ("registers", NUMBER, lambda row: row[1].registers or unknown),
        ("spills", NUMBER, lambda r: count(r[1].spills, BAD) if r[1].registers else unknown),
        ("shared", NUMBER, lambda row: row[1].shared),
        ("bytes", NUMBER, lambda row: row[1].bytes),
    ]
    about = (
        "A row per variant and architecture. Registers and spills (4-byte words) are per thread, "
        "shared memory is in bytes per block. *fp16:16 is a pointer to fp16, i32:16 an integer, "
        "that is a multiple of 16."
    )
    rows = [(variant, image) for variant in build.variants for image in variant.images]
    return table(f"images-{number}", "Variants", columns, rows, about)


def _launch_table(launched: Iterable[Launched], *, has_launches: bool) -> Table:
    columns: list[Column] = [
        ("kernel", NAME, lambda k: k.kernel),
        ("served", NUMBER, lambda k: k.served),
        ("of these general", NUMBER, lambda k: count(k.general, WARN)),
        ("by Triton", NUMBER, lambda k: count(k.by_triton, BAD)),
        ("why by Triton", "", lambda k: "\n".join(k.reasons)),
    ]
    about = (
        "Launches by the general variant are covered; recording their sizes would give faster "
        "kernels."
    )
    if not has_launches:
        about = (
            "No launch was counted, so the counts say nothing of what is covered: the program "
            f"launched no kernel, or in a process that was not counted. Count it with {COUNTING}."
        )
    return table("launched", "Launched", columns, launched, about)


# A page with more of them would not be read; the table below them has every row.
_MOST_MAPS = 24


def _tuning_table(number: int, kernel: TunedKernel, tuned: Sequence[TuningRow]) -> Table:
    def part(index: int) -> Callable[[TuningRow], Cell]:
        def cell(row: TuningRow) -> Cell:
            value = row.at[index]
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            return Cell(str(value), float(str(value)) if is_number else None)

        return cell

    columns: list[Column] = [
        *((name, NUMBER, part(index)) for index, name in enumerate(kernel.key)),
        ("time", NUMBER, lambda row: Cell(duration(row.us), row.us)),
        ("configuration", CODE, lambda row: listed(row.config)),
        ("device", "", lambda row: row.device),
    ]
    name = f"tuning-{number}"
    maps = heat_maps(name, kernel, tuned)
    more = len(maps) - _MOST_MAPS
    about = f"{more} more maps are in the table." if more > 0 else ""
    drawn = plot(kernel, tuned)
    return table(name, str(kernel), columns, tuned, about, maps[:_MOST_MAPS], drawn)


def _time_table(times: Iterable[Timed]) -> Table:
    """What is compared are times of one operator, whose longest bar is as wide as the column."""

    def bar(row: tuple[Timed, str, float]) -> Cell:
        timed, _, us = row
        longest = max(timed.microseconds.values()) or 1
        return Cell(duration(us), us, "bar", round(100 * us / longest))

    columns: list[Column] = [
        ("operator", NAME, lambda row: row[0].op),
        ("dtype", "", lambda row: row[0].dtype),
        ("measured", "", lambda row: row[1]),
        ("time", NUMBER, bar),
        ("device", "", lambda row: row[0].device),
    ]
    rows = [(timed, label, us) for timed in times for label, us in timed.microseconds.items()]
    return table("measured", "Measured times", columns, rows)


_STATUS = {"pass": GOOD, "fail": BAD, "skipped": WARN}


def _check_table(rows: Iterable[Checked]) -> Table:
    columns: list[Column] = [
        ("operator", NAME, lambda row: row.op),
        ("row", "", lambda row: row.row),
        ("status", "", lambda row: Cell(row.status, css=_STATUS[row.status])),
        ("why", "", lambda row: "\n".join(filter(None, (row.reason, *map(_note, row.notes))))),
        ("fix", "", lambda row: row.fix),
        ("time", NUMBER, lambda row: Cell(f"{row.seconds:.1f} s", row.seconds)),
    ]
    return table("check", "Check", columns, rows)


def _note(text: str) -> str:
    return f"note: {text}"
