"""A report as one page that needs nothing else: no network, no other file."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..notebook import counted, size
from .changes import Change
from .charts import MOST_MAPS, HeatMap, Plot, bars, heat_maps, plot
from .facts import totals
from .limits import Judged
from .model import LIBRARY, Build, Report
from .tables import (
    BAD,
    GOOD,
    WARN,
    Table,
    case_table,
    change_table,
    check_table,
    gap_table,
    image_table,
    launch_table,
    limit_table,
    operator_table,
    time_table,
    tuning_table,
)


@dataclass(frozen=True)
class Tile:
    """A number at the top of the page."""

    label: str
    text: str
    css: str = ""


@dataclass(frozen=True)
class TunedSection:
    """What was measured of one kernel."""

    title: str
    maps: list[HeatMap]
    left_out: int
    plot: Plot | None
    table: Table


@dataclass(frozen=True)
class BuildSection:
    """What one build has."""

    build: Build
    about: str
    tables: list[Table]


def render(
    report: Report,
    changes: tuple[Change, ...] | None = None,
    judged: tuple[Judged, ...] = (),
    since: str = "",
    unlike: str = "",
) -> str:
    """The HTML of a report, and of what has changed since an older one."""
    content = _content(report, changes, judged)
    return str(_template().render(**content, since=since, unlike=unlike))


@functools.cache
def _template() -> Any:
    # Only pages need it.
    import jinja2  # noqa: PLC0415

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("report.html")


def _content(
    report: Report, changes: tuple[Change, ...] | None, judged: tuple[Judged, ...]
) -> dict[str, Any]:
    uncovered = gap_table(report)
    content: dict[str, Any] = {
        "title": ", ".join(build.name for build in report.builds) or "opforge report",
        "source": report.source,
        "version": __version__,
        "tiles": _tiles(report, changes),
        "limits": limit_table(judged) if judged else None,
        "changes": None if changes is None else change_table(changes),
        "uncovered": uncovered if uncovered.rows else None,
        "builds": [_build(build, number) for number, build in enumerate(report.builds, 1)],
        "launched": None if report.launched is None else launch_table(report.launched),
        "tuning": _tuning(report),
        "bars": bars(report.times),
        "times": time_table(report.times) if report.times else None,
        "checked": None if report.checked is None else check_table(report.checked),
    }
    builds = [(f"build-{i}", build.name) for i, build in enumerate(report.builds, 1)]
    before = [(table.id, table.title) for table in map(content.get, _BEFORE) if table]
    after = [(name, title) for key, name, title in _AFTER if content[key]]
    return {**content, "sections": [*before, *builds, *after]}


# Sections around those of the builds, in the order of the page.
_BEFORE = ("limits", "changes", "uncovered")
_AFTER = (
    ("launched", "launched", "Launched"),
    ("tuning", "tuning", "Tuning"),
    ("times", "measured", "Measured times"),
    ("checked", "check", "Check"),
)


def _build(build: Build, number: int) -> BuildSection:
    kind = "A library" if build.kind == LIBRARY else "Served kernels"
    versions = ", ".join(f"{name} {version}" for name, version in build.versions.items())
    made = f", made with {versions}" if versions else ""
    about = f"{kind} for {', '.join(build.archs)}, {size(build.bytes)}{made}."
    tables = [image_table(build, number)]
    if build.operators:
        tables = [operator_table(build, number), case_table(build, number), *tables]
    return BuildSection(build, about, tables)


def _tuning(report: Report) -> list[TunedSection]:
    found = []
    for number, (kernel, by_key) in enumerate(report.tuning.rows.items(), 1):
        rows = list(by_key.values())
        maps = heat_maps(kernel, rows)
        left_out = max(0, len(maps) - MOST_MAPS)
        table = tuning_table(number, kernel, rows)
        drawn = plot(kernel, rows)
        found.append(TunedSection(str(kernel), maps[:MOST_MAPS], left_out, drawn, table))
    return found


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


def _tiles(report: Report, changes: tuple[Change, ...] | None) -> list[Tile]:
    found = []
    for name, value in totals(report).items():
        label, judged = _TILES[name]
        css = (judged if value else GOOD) if judged else ""
        if name == "launches" and not value:
            css = WARN
        found.append(Tile(label, size(value) if name in _SIZES else f"{value:,}", css))
    if changes is not None:
        worse = sum(one.verdict == "worse" for one in changes)
        found.append(Tile("changes for the worse", f"{worse:,}", BAD if worse else GOOD))
    return found


def summary(report: Report) -> str:
    """The same in a few lines, for a terminal."""
    lines = []
    for build in report.builds:
        operators = f"{counted(len(build.operators), 'operator')}, " if build.operators else ""
        lines.append(
            f"{build.name}: {operators}{counted(len(build.variants), 'variant')} for "
            f"{', '.join(build.archs)}, {size(build.bytes)}"
        )
    found = totals(report)
    told = [
        (found.get("spilling"), "image", "spilling"),
        (found.get("uncovered"), "gap", "in what is covered"),
        (found.get("launches"), "launch", "seen"),
        (found.get("tuned"), "row", "of tuning tables"),
        (len(report.times) or None, "measured operator", ""),
        (found.get("failed"), "check row", "failed"),
    ]
    shown = [
        f"{counted(number, noun)} {rest}".strip()
        for number, noun, rest in told
        if number is not None
    ]
    return "\n".join([*lines, *(["; ".join(shown)] if shown else [])])
