"""The tables of a report's page: cells with what is shown and what is sorted by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..tuning.table import TunedKernel, TuningRow
from .changes import Change
from .charts import duration
from .facts import gaps, images
from .limits import COUNTING, Judged
from .model import Build, Checked, Launched, Report, Timed

GOOD, BAD, WARN, CODE, DIM = "good", "bad", "warn", "code", "dim"
# Of what a row is about, which keeps its width.
NAME = f"{CODE} name"


@dataclass(frozen=True)
class Cell:
    """Sorted by `value` where it has one, else by its text; `css` is a class."""

    text: str
    value: float | None = None
    css: str = ""


@dataclass(frozen=True)
class Column:
    """Numbers stand on the right, and the first click puts the largest on top."""

    name: str
    is_number: bool = False


@dataclass(frozen=True)
class Table:
    """`id` names it in links: `report.html#images`."""

    id: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    about: str = ""


def _columns(*names: str) -> tuple[Column, ...]:
    """`#registers` is a column of numbers."""
    return tuple(Column(name.lstrip("#"), name.startswith("#")) for name in names)


def _count(number: int, css: str = "") -> Cell:
    return Cell(f"{number:,}", number, css)


def _without_empty(table: Table) -> Table:
    """Without columns in which no row says anything."""
    kept = [i for i in range(len(table.columns)) if any(row[i].text for row in table.rows)]
    rows = tuple(tuple(row[i] for i in kept) for row in table.rows)
    return replace(table, columns=tuple(table.columns[i] for i in kept), rows=rows)


def operator_table(build: Build, number: int) -> Table:
    rows = []
    for operator in build.operators:
        uncovered = sum(len(case.uncovered) for case in operator.cases)
        own = [v for v in build.variants if operator.name in v.operators]
        rows.append(
            (
                Cell(operator.torch_name or operator.name, css=NAME),
                _count(len(operator.cases)),
                _count(sum(case.paths for case in operator.cases)),
                _count(len(own)),
                _count(uncovered, BAD if uncovered else ""),
                Cell(operator.covers, css=CODE),
                Cell("\n".join(filter(None, (operator.doc, operator.location)))),
            )
        )
    columns = _columns(
        "operator", "#cases", "#paths", "#variants", "#not covered", "covers", "about"
    )
    return Table(f"operators-{number}", "Operators", columns, tuple(rows))


def case_table(build: Build, number: int) -> Table:
    rows = [
        (
            Cell(operator.name, css=NAME),
            Cell(case.case, css=CODE),
            _count(case.paths),
            Cell("\n".join(case.uncovered), len(case.uncovered), BAD if case.uncovered else ""),
            Cell("\n".join(case.raises), len(case.raises)),
        )
        for operator in build.operators
        for case in operator.cases
    ]
    columns = _columns("operator", "case", "#paths", "not covered", "raises, as the body does")
    return _without_empty(Table(f"cases-{number}", "Cases", columns, tuple(rows)))


def image_table(build: Build, number: int) -> Table:
    has_operators = bool(build.operators)
    rows = []
    for variant, image in images(build):
        known = image.registers > 0
        given = {**variant.constants, **variant.options}
        rows.append(
            (
                Cell(variant.kernel, css=NAME),
                Cell(", ".join(variant.types), css=CODE),
                Cell(", ".join(f"{name}={value}" for name, value in given.items()), css=CODE),
                *((Cell(", ".join(variant.operators)),) if has_operators else ()),
                Cell(image.arch),
                _count(image.num_warps),
                _count(image.registers) if known else Cell("?", -1, DIM),
                _count(image.spills, BAD if image.spills else "") if known else Cell("?", -1, DIM),
                _count(image.shared),
                _count(image.bytes),
            )
        )
    names = ["kernel", "types", "constants and options", *(["operators"] if has_operators else [])]
    numbers = ["#warps", "#registers", "#spills", "#shared", "#bytes"]
    about = (
        "A row per variant and architecture. Registers and spills (4-byte words) are per thread, "
        "shared memory is in bytes per block. *fp16:16 is a pointer to fp16, i32:16 an integer, "
        "that is a multiple of 16."
    )
    columns = _columns(*names, "arch", *numbers)
    return _without_empty(Table(f"images-{number}", "Variants", columns, tuple(rows), about))


def gap_table(report: Report) -> Table:
    rows = tuple(
        (Cell(gap.what, css=CODE), Cell(gap.why), _count(gap.launches, BAD)) for gap in gaps(report)
    )
    about = (
        "Paths that a library refuses, variants that an architecture lacks, and launches that "
        "Triton had to make."
    )
    return Table("uncovered", "Not covered", _columns("what", "why", "#count"), rows, about)


def launch_table(launched: tuple[Launched, ...]) -> Table:
    rows = tuple(
        (
            Cell(one.kernel, css=NAME),
            _count(one.served),
            _count(one.general, WARN if one.general else ""),
            _count(one.by_triton, BAD if one.by_triton else ""),
            Cell("\n".join(one.reasons)),
        )
        for one in launched
    )
    about = (
        "Launches by the general variant are covered; recording their sizes would give faster "
        "kernels."
    )
    if not any(one.served + one.by_triton for one in launched):
        about = (
            "No launch was counted, so the counts say nothing of what is covered: the program "
            f"launched no kernel, or in a process that was not counted. Count it with {COUNTING}."
        )
    columns = _columns("kernel", "#served", "#of these general", "#by Triton", "why by Triton")
    return _without_empty(Table("launched", "Launched", columns, rows, about))


def tuning_table(number: int, kernel: TunedKernel, rows: Iterable[TuningRow]) -> Table:
    found = tuple(
        (
            *(Cell(str(value), _sortable(value)) for value in row.at),
            Cell(duration(row.us), row.us),
            Cell(", ".join(f"{name}={value}" for name, value in row.config), css=CODE),
            Cell(row.device),
        )
        for row in rows
    )
    columns = _columns(*(f"#{name}" for name in kernel.key), "#time", "configuration", "device")
    return Table(f"tuning-{number}", "", columns, found)


def _sortable(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value)


def time_table(times: Iterable[Timed]) -> Table:
    rows = tuple(
        (
            Cell(timed.op, css=NAME),
            Cell(timed.dtype),
            Cell(label),
            Cell(duration(us), us),
            Cell(timed.device),
        )
        for timed in times
        for label, us in timed.microseconds.items()
    )
    columns = _columns("operator", "dtype", "measured", "#time", "device")
    return _without_empty(Table("times", "", columns, rows))


_STATUS = {"pass": GOOD, "fail": BAD, "skipped": WARN}


def check_table(checked: Iterable[Checked]) -> Table:
    rows = tuple(
        (
            Cell(row.op, css=NAME),
            Cell(row.row),
            Cell(row.status, css=_STATUS[row.status]),
            Cell("\n".join([row.reason, *(f"note: {note}" for note in row.notes)]).strip()),
            Cell(row.fix),
            Cell(f"{row.seconds:.1f} s", row.seconds),
        )
        for row in checked
    )
    columns = _columns("operator", "row", "status", "why", "fix", "#time")
    return _without_empty(Table("check", "Check", columns, rows))


def change_table(changes: Iterable[Change]) -> Table:
    rows = tuple(
        (
            Cell(one.kind),
            Cell(one.what, css=CODE),
            _state(one.before, one.kind),
            _state(one.after, one.kind),
            Cell(one.verdict, css={"worse": BAD, "better": GOOD}.get(one.verdict, "")),
        )
        for one in changes
    )
    about = "Images are compared by kernel, types, constants and options, whatever was edited."
    columns = _columns("kind", "what", "#before", "#after", "verdict")
    return Table("changes", "What changed", columns, rows, about)


def _state(value: float | str | None, kind: str) -> Cell:
    if value is None:
        return Cell("none", css=DIM)
    if isinstance(value, str):
        return Cell(value)
    if kind == "time":
        return Cell(duration(value), value)
    return Cell(f"{value:,}", value)


# Of what is beyond a limit; the tables below have every row.
_MOST_BEYOND = 3


def limit_table(judged: Iterable[Judged]) -> Table:
    rows = []
    for one in judged:
        first = [f"{what}: {amount}" for what, amount in one.beyond[:_MOST_BEYOND]]
        more = len(one.beyond) - len(first)
        shown = "\n".join([*first, *([f"and {more} more"] if more else [])])
        verdict = Cell("ok", css=GOOD) if one.ok else Cell("failed", css=BAD)
        rows.append((Cell(one.limit, css=NAME), verdict, Cell(shown, css=CODE)))
    columns = _columns("fail on", "verdict", "because of")
    return Table("limits", "Limits", columns, tuple(rows))
