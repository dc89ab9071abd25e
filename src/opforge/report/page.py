"""A page of tables and figures that needs nothing else: no network, no other file.

Heat maps and plots are SVG, with the classes and colours of `templates/report.css`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard
from xml.etree import ElementTree as ET

from .. import __version__
from ..tuning.table import TunedKernel, TuningRow, Value, order
from .model import listed

# Classes of columns and cells, as in report.css.
GOOD, BAD, WARN, CODE, DIM = "good", "bad", "warn", "code", "dim"
# Numbers stand on the right, and the first click puts the largest on top.
NUMBER = "number"
# Of what a row is about, which keeps its width.
NAME = f"{CODE} name"


@dataclass(frozen=True)
class Cell:
    """Sorted by `value` where it has one, else by its text; `css` is a class.

    `bar` is how much of the cell is coloured, in percent.
    """

    text: str
    value: float | None = None
    css: str = ""
    bar: float | None = None


@dataclass(frozen=True)
class Figure:
    """A drawing; `legend` are the labels of its series."""

    svg: str
    title: str = ""
    legend: tuple[str, ...] = ()
    about: str = ""


@dataclass(frozen=True)
class Table:
    """`id` names it in links: `report.html#images`; columns have a name and a class."""

    id: str
    title: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Cell, ...], ...]
    about: str = ""
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True)
class Section:
    """Tables below a heading of their own."""

    id: str
    title: str
    about: str
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Tile:
    """A number at the top of the page."""

    label: str
    text: str
    css: str = ""


def table(
    name: str,
    title: str,
    columns: Sequence[tuple[str, str]],
    rows: Iterable[Sequence[Cell | str | int]],
    *,
    about: str = "",
    figures: Sequence[Figure] = (),
) -> Table:
    """A table of texts, counts and cells, without columns in which no row says anything."""
    cells = [[_cell(value) for value in row] for row in rows]
    kept = [i for i in range(len(columns)) if not cells or any(row[i].text for row in cells)]
    return Table(
        name,
        title,
        tuple(columns[i] for i in kept),
        tuple(tuple(row[i] for i in kept) for row in cells),
        about,
        tuple(figures),
    )


def _cell(value: Cell | str | int) -> Cell:
    if isinstance(value, Cell):
        return value
    return Cell(value) if isinstance(value, str) else count(value)


def count(number: int, css: str = "") -> Cell:
    """`css` is what any of it is."""
    return Cell(f"{number:,}", number, css if number else "")


def render(
    title: str,
    about: str,
    tiles: Iterable[Tile],
    sections: Sequence[Table | Section],
    warning: str = "",
) -> str:
    """The HTML of a page."""
    # Only pages need it.
    import jinja2  # noqa: PLC0415

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("report.html").render(
        title=title,
        about=about,
        tiles=tiles,
        sections=sections,
        warning=warning,
        version=__version__,
        series_class=series_class,
    )


# A plot with more of them would not be read; the table below it has every row.
_MOST_LINES = 12

# All in pixels.
_CELL_WIDTH, _CELL_HEIGHT = 76, 30
_WIDTH, _HEIGHT = 560, 300


def duration(us: float) -> str:
    """`12.1 us`, `3.4 ms`."""
    if us >= 1e6:
        return f"{us / 1e6:.3g} s"
    if us >= 1e3:
        return f"{us / 1e3:.3g} ms"
    return f"{us:.3g} us"


def heat_maps(kernel: TunedKernel, rows: Sequence[TuningRow]) -> list[Figure]:
    """Times over the two parts of the key with the most values; a map for each of the others."""
    values = [{order(row.at[i]) for row in rows} for i in range(len(kernel.key))]
    # Numbers before words; a part with one value is on neither axis.
    varied = [i for i, different in enumerate(values) if len(different) > 1]
    varied.sort(key=lambda i: (any(kind for kind, _ in values[i]), -len(values[i])))
    axes = varied[:2]
    groups: dict[str, list[TuningRow]] = {}
    for row in sorted(rows, key=lambda row: [*map(order, row.at)]):
        pairs = zip(kernel.key, row.at, strict=True)
        title = listed(pair for i, pair in enumerate(pairs) if i not in axes)
        groups.setdefault(title, []).append(row)
    # Logarithmic, because times differ by orders of magnitude, and the same for all maps.
    logs = [math.log(row.us) for row in rows if row.us > 0] or [0.0]
    heat = _Scale(logs, 0, 100)
    return [_heat_map(title, kernel, group, axes, heat) for title, group in groups.items()]


def _heat_map(
    title: str, kernel: TunedKernel, rows: list[TuningRow], axes: list[int], heat: _Scale
) -> Figure:
    left, top = 84, 36
    x_name, y_name = [*(kernel.key[i] for i in axes), "", ""][:2]

    def place(row: TuningRow) -> list[tuple[str, Any]]:
        return [*(order(row.at[i]) for i in axes), ("", ""), ("", "")][:2]

    columns, lines = (sorted({place(row)[axis] for row in rows}) for axis in (0, 1))
    x_of = {value: left + _CELL_WIDTH * (i + 0.5) for i, value in enumerate(columns)}
    y_of = {value: top + _CELL_HEIGHT * (i + 0.5) for i, value in enumerate(lines)}
    width, height = _CELL_WIDTH * len(columns), _CELL_HEIGHT * len(lines)
    svg = _svg("heat", f"times by {x_name} {y_name}", left + width + 28, top + height + 4)
    _text(svg, left, 12, x_name, "axis")
    _text(svg, left - 8, top - 8, y_name, "axis end")
    for (_, value), x in x_of.items():
        _text(svg, x, top - 8, str(value), "mid")
    for (_, value), y in y_of.items():
        _text(svg, left - 8, y + 4, str(value), "end")
    for row in rows:
        x, y = (of[value] for of, value in zip((x_of, y_of), place(row), strict=True))
        cell = _draw(svg, "g")
        _draw(cell, "title", f"{duration(row.us)}: {listed(row.config)}")
        warmth = heat.of(math.log(row.us)) if row.us > 0 else 0
        _draw(
            cell,
            "rect",
            x=x - _CELL_WIDTH / 2 + 1,
            y=y - _CELL_HEIGHT / 2 + 1,
            width=_CELL_WIDTH - 2,
            height=_CELL_HEIGHT - 2,
            rx=3,
            style=f"--heat: {warmth}%",
        )
        _text(cell, x, y + 4, duration(row.us), "mid")
    return Figure(ET.tostring(svg, "unicode"), title)


def plot(kernel: TunedKernel, rows: Sequence[TuningRow]) -> Figure | None:
    """Times over the number of the key that varies most, both logarithmic.

    None if there are not two points to connect.
    """
    values = {i: {row.at[i] for row in rows} for i in range(len(kernel.key))}
    counts = {i: len(v) for i, v in values.items() if all(_is_number(n) and n > 0 for n in v)}
    axis = max(counts, key=lambda i: counts[i], default=None)
    timed = [row for row in rows if row.us > 0]
    if axis is None or counts[axis] < 2 or not timed:
        return None
    series: dict[str, list[TuningRow]] = {}
    for row in sorted(timed, key=lambda row: [*map(order, row.at)]):
        pairs = zip(kernel.key, row.at, strict=True)
        label = listed(pair for i, pair in enumerate(pairs) if i != axis)
        series.setdefault(label or "time", []).append(row)

    def size(row: TuningRow) -> float:
        return float(str(row.at[axis]))

    left, top, right, bottom = 64, 12, 64 + _WIDTH - 92, _HEIGHT - 40
    x_scale = _Scale([math.log2(size(row)) for row in timed], left, right, margin=True)
    y_scale = _Scale([math.log10(row.us) for row in timed], bottom, top, margin=True)
    svg = _svg("plot", f"times over {kernel.key[axis]}", right + 28, bottom + 40)
    for part in range(5):
        y = bottom - part * (bottom - top) / 4
        time = 10 ** (y_scale.low + part * (y_scale.high - y_scale.low) / 4)
        _draw(svg, "line", css="grid", x1=left, x2=right, y1=y, y2=y)
        _text(svg, left - 6, y + 4, duration(time), "end")
    sizes = sorted({size(row) for row in timed})
    for number in sizes[:: math.ceil(len(sizes) / 8)]:
        x = x_scale.of(math.log2(number))
        _draw(svg, "line", css="grid", x1=x, x2=x, y1=top, y2=bottom)
        _text(svg, x, bottom + 16, f"{number:.15g}", "mid")
    _text(svg, (left + right) / 2, bottom + 34, kernel.key[axis], "axis mid")
    labels = tuple(series)[:_MOST_LINES]
    for number, label in enumerate(labels):
        line = _draw(svg, "g", css=series_class(number))
        members = sorted(series[label], key=size)
        points = [(x_scale.of(math.log2(size(r))), y_scale.of(math.log10(r.us))) for r in members]
        _draw(line, "polyline", points=" ".join(f"{x},{y}" for x, y in points))
        for (x, y), row in zip(points, members, strict=True):
            at = listed(zip(kernel.key, row.at, strict=True))
            _draw(_draw(line, "circle", cx=x, cy=y, r=3.5), "title", f"{at}: {duration(row.us)}")
    more = len(series) - len(labels)
    return Figure(
        ET.tostring(svg, "unicode"),
        legend=labels if len(labels) > 1 else (),
        about=f"{more} more lines are in the table." if more else "",
    )


def series_class(number: int) -> str:
    """The seventh to twelfth have the colours of the first six, dashed."""
    return f"series-{number % 6}{' dashed' if number >= 6 else ''}"


class _Scale:
    """From numbers to pixels; what is all the same stands at the start, or in the middle."""

    def __init__(
        self, values: Sequence[float], start: float, end: float, *, margin: bool = False
    ) -> None:
        low, high = min(values), max(values)
        room = (0.05 * (high - low) or 0.5) if margin else 0
        self.low, self.high = low - room, high + room
        self._start, self._end = start, end

    def of(self, value: float) -> float:
        part = (value - self.low) / ((self.high - self.low) or 1)
        return round(self._start + part * (self._end - self._start), 1)


def _is_number(value: Value) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _svg(css: str, label: str, width: float, height: float) -> ET.Element:
    box = {"width": str(width), "height": str(height), "viewBox": f"0 0 {width} {height}"}
    return ET.Element("svg", {"class": css, **box, "role": "img", "aria-label": label})


def _draw(
    parent: ET.Element, tag: str, text: str = "", css: str = "", **attributes: object
) -> ET.Element:
    named = {"class": css} if css else {}
    mark = ET.SubElement(
        parent, tag, {**named, **{name: str(value) for name, value in attributes.items()}}
    )
    mark.text = text
    return mark


def _text(parent: ET.Element, x: float, y: float, text: str, css: str = "") -> None:
    _draw(parent, "text", text, css, x=x, y=y)
