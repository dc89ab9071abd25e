"""`opforge report`: what the command reads, writes and says."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import BadOption, OutputNotWritable
from ..notebook import size
from ..tuning.table import TunedKernel, TuningRow, Value
from .changes import BETTER, WORSE, Change, compare, unlike
from .limits import COUNTING, Judged, judge, parse_limits
from .model import LIBRARY, Build, Launched, Report, Timed, listed
from .page import (
    BAD,
    CODE,
    DIM,
    GOOD,
    NAME,
    NUMBER,
    WARN,
    Cell,
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
        yield table(
            "uncovered",
            "Not covered",
            [("what", CODE), ("why", ""), ("count", NUMBER)],
            [(gap.what, gap.why, count(gap.launches, BAD)) for gap in report.gaps],
            about="Paths that a library refuses, variants that an architecture lacks, and launches "
            "that Triton had to make.",
        )
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
        yield _check_table(report)


# Of what is beyond a limit; the tables below have every row.
_MOST_BEYOND = 3


def _limit_table(judged: Iterable[Judged]) -> Table:
    rows = [
        (
            limit.limit,
            Cell("ok", css=GOOD) if limit.ok else Cell("failed", css=BAD),
            "\n".join(limit.lines(_MOST_BEYOND)),
        )
        for limit in judged
    ]
    columns = [("fail on", NAME), ("verdict", ""), ("because of", CODE)]
    return table("limits", "Limits", columns, rows)


def _change_table(changes: Iterable[Change]) -> Table:
    def state(value: Any, kind: str) -> Cell | str | int:
        if value is None:
            return Cell("none", css=DIM)
        return Cell(duration(value), value) if kind == "time" else value

    rows = [
        (
            change.kind,
            change.what,
            state(change.before, change.kind),
            state(change.after, change.kind),
            Cell(change.verdict, css={WORSE: BAD, BETTER: GOOD}.get(change.verdict, "")),
        )
        for change in changes
    ]
    return table(
        "changes",
        "What changed",
        [("kind", ""), ("what", CODE), ("before", NUMBER), ("after", NUMBER), ("verdict", "")],
        rows,
        about="Images are compared by kernel, types, constants and options, whatever was edited.",
    )


def _build(build: Build, number: int) -> Section:
    kind = "A library" if build.kind == LIBRARY else "Served kernels"
    versions = ", ".join(f"{name} {version}" for name, version in build.versions.items())
    suffix = f", made with {versions}" if versions else ""
    about = f"{kind} for {', '.join(build.archs)}, {size(build.bytes)}{suffix}."
    tables = [_image_table(build, number)]
    if build.operators:
        tables = [_operator_table(build, number), _case_table(build, number), *tables]
    if build.notes:
        notes = [(note,) for note in build.notes]
        tables.append(table(f"notes-{number}", "Notes of the build", [("note", "")], notes))
    return Section(f"build-{number}", build.name, about, tuple(tables))


def _operator_table(build: Build, number: int) -> Table:
    rows = [
        (
            operator.torch_name or operator.name,
            len(operator.cases),
            sum(case.paths for case in operator.cases),
            sum(operator.name in variant.operators for variant in build.variants),
            count(sum(len(case.uncovered) for case in operator.cases), BAD),
            operator.covers,
            "\n".join(filter(None, (operator.doc, operator.location))),
        )
        for operator in build.operators
    ]
    columns = [("operator", NAME), ("cases", NUMBER), ("paths", NUMBER), ("variants", NUMBER)]
    columns += [("not covered", NUMBER), ("covers", CODE), ("about", "")]
    return table(f"operators-{number}", "Operators", columns, rows)


def _case_table(build: Build, number: int) -> Table:
    rows = [
        (
            operator.name,
            case.case,
            case.paths,
            Cell("\n".join(case.uncovered), len(case.uncovered), BAD if case.uncovered else ""),
            Cell("\n".join(case.raises), len(case.raises)),
        )
        for operator in build.operators
        for case in operator.cases
    ]
    columns = [("operator", NAME), ("case", CODE), ("paths", NUMBER), ("not covered", "")]
    columns += [("raises, as the body does", "")]
    return table(f"cases-{number}", "Cases", columns, rows)


def _image_table(build: Build, number: int) -> Table:
    unknown = Cell("?", -1, DIM)
    rows = [
        (
            variant.kernel,
            ", ".join(variant.types),
            variant.constants_text,
            ", ".join(variant.operators),
            image.arch,
            image.num_warps,
            image.registers or unknown,
            count(image.spills, BAD) if image.registers else unknown,
            image.shared,
            image.bytes,
        )
        for variant in build.variants
        for image in variant.images
    ]
    columns = [("kernel", NAME), ("types", CODE), ("constants and options", CODE)]
    columns += [("operators", ""), ("arch", "")]
    columns += [(name, NUMBER) for name in ("warps", "registers", "spills", "shared", "bytes")]
    about = (
        "A row per variant and architecture. Registers and spills (4-byte words) are per thread, "
        "shared memory is in bytes per block. *fp16:16 is a pointer to fp16, i32:16 an integer, "
        "that is a multiple of 16."
    )
    return table(f"images-{number}", "Variants", columns, rows, about=about)


def _launch_table(launched: Iterable[Launched], *, has_launches: bool) -> Table:
    rows = [
        (
            kernel.kernel,
            kernel.served,
            count(kernel.general, WARN),
            count(kernel.by_triton, BAD),
            "\n".join(kernel.reasons),
        )
        for kernel in launched
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
    columns = [("kernel", NAME), ("served", NUMBER), ("of these general", NUMBER)]
    columns += [("by Triton", NUMBER), ("why by Triton", "")]
    return table("launched", "Launched", columns, rows, about=about)


# A page with more of them would not be read; the table below them has every row.
_MOST_MAPS = 24


def _tuning_table(number: int, kernel: TunedKernel, tuned: Sequence[TuningRow]) -> Table:
    def cell(value: Value) -> Cell:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return Cell(str(value), float(str(value)) if is_number else None)

    rows: list[list[Cell | str | int]] = [
        [*map(cell, row.at), Cell(duration(row.us), row.us), listed(row.config), row.device]
        for row in tuned
    ]
    columns = [*((name, NUMBER) for name in kernel.key), ("time", NUMBER)]
    columns += [("configuration", CODE), ("device", "")]
    maps, line_plot = heat_maps(kernel, tuned), plot(kernel, tuned)
    figures = [*maps[:_MOST_MAPS], *([line_plot] if line_plot else [])]
    more = len(maps) - _MOST_MAPS
    about = f"{more} more maps are in the table." if more > 0 else ""
    return table(f"tuning-{number}", str(kernel), columns, rows, about=about, figures=figures)


def _time_table(times: Iterable[Timed]) -> Table:
    """What is compared are times of one operator, whose longest bar is as wide as the column."""
    rows = [
        (
            timed.op,
            timed.dtype,
            label,
            Cell(duration(us), us, bar=round(100 * us / (max(timed.microseconds.values()) or 1))),
            timed.device,
        )
        for timed in times
        for label, us in timed.microseconds.items()
    ]
    columns = [("operator", NAME), ("dtype", ""), ("measured", ""), ("time", NUMBER)]
    return table("measured", "Measured times", [*columns, ("device", "")], rows)


_STATUS = {"pass": GOOD, "fail": BAD, "skipped": WARN}


def _check_table(report: Report) -> Table:
    rows = [
        (
            row.op,
            row.row,
            Cell(row.status, css=_STATUS[row.status]),
            "\n".join([row.reason, *(f"note: {note}" for note in row.notes)]).strip(),
            row.fix,
            Cell(f"{row.seconds:.1f} s", row.seconds),
        )
        for row in report.checked or ()
    ]
    columns = [("operator", NAME), ("row", ""), ("status", ""), ("why", ""), ("fix", "")]
    columns += [("time", NUMBER)]
    return table("check", "Check", columns, rows)
