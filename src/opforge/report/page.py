"""A page of tables and figures that needs nothing else: no network, no other file.

Plots are SVG, with the classes and colours of `templates/report.css`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
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

    `share` is how much of a bar is filled, or how warm a cell of a heat map is, in percent; `title`
    is shown where the pointer is.
    """

    text: str
    value: float | None = None
    css: str = ""
    share: float | None = None
    title: str = ""


@dataclass(frozen=True)
class Plot:
    """A drawing as SVG; `legend` are the labels of its series."""

    svg: str
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
    # What is drawn of it, above it.
    maps: tuple[Table, ...] = ()
    plot: Plot | None = None


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


# A column's name and class, and what a cell of it shows of a row.
Column = tuple[str, str, Callable[[Any], Cell | str | int]]


def table(  # noqa: PLR0917  # in the order of the page
    name: str,
    title: str,
    columns: Sequence[Column],
    rows: Iterable[Any],
    about: str = "",
    maps: Sequence[Table] = (),
    plot: Plot | None = None,
) -> Table:
    """A table without columns in which no row says anything."""
    listed = [[_cell(show(row)) for *_, show in columns] for row in rows]
    kept = [i for i in range(len(columns)) if not listed or any(row[i].text for row in listed)]
    return Table(
        name,
        title,
        tuple(columns[i][:2] for i in kept),
        tuple(tuple(row[i] for i in kept) for row in listed),
        about,
        tuple(maps),
        plot,
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
# In pixels.
_WIDTH, _HEIGHT = 560, 300


def duration(us: float) -> str:
    """`12.1 us`, `3.4 ms`."""
    if us >= 1e6:
        return f"{us / 1e6:.3g} s"
    if us >= 1e3:
        return f"{us / 1e3:.3g} ms"
    return f"{us:.3g} us"


def heat_maps(name: str, kernel: TunedKernel, rows: Sequence[TuningRow]) -> list[Table]:
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
    heat = _Scale([math.log(row.us) for row in rows if row.us > 0] or [0.0], 0, 100)
    return [
        _heat_map(f"{name}-map-{number}", title, kernel, group, axes, heat)
        for number, (title, group) in enumerate(groups.items(), 1)
    ]


def _heat_map(  # noqa: PLR0917  # what it is called, and what it shows
    name: str,
    title: str,
    kernel: TunedKernel,
    rows: list[TuningRow],
    axes: list[int],
    heat: _Scale,
) -> Table:
    x, y = [*(kernel.key[i] for i in axes), "", ""][:2]
    cells: dict[tuple[Any, Any], Cell] = {}
    for row in rows:
        place = [*(order(row.at[i]) for i in axes), ("", ""), ("", "")]
        warmth = heat.of(math.log(row.us)) if row.us > 0 else 0
        cells[place[1], place[0]] = Cell(
            duration(row.us), row.us, "heat", warmth, listed(row.config)
        )
    columns: list[Column] = [(y, NUMBER, lambda line: str(line[1]))]
    for at in sorted({at for _, at in cells}):
        shown = listed([(x, at[1])]) if x else "time"
        columns.append((shown, NUMBER, lambda line, at=at: cells.get((line, at), "")))  # type: ignore[misc]
    return table(name, title, columns, sorted({line for line, _ in cells}))


def plot(kernel: TunedKernel, rows: Sequence[TuningRow]) -> Plot | None:
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
    box = {"width": f"{right + 28}", "height": f"{bottom + 40}"}
    view = f"0 0 {box['width']} {box['height']}"
    svg = ET.Element("svg", {"class": "plot", "role": "img", "viewBox": view, **box})
    for part in range(5):
        y = bottom - part * (bottom - top) / 4
        time = 10 ** (y_scale.low + part * (y_scale.high - y_scale.low) / 4)
        _draw(svg, "line", css="grid", x1=left, x2=right, y1=y, y2=y)
        _draw(svg, "text", duration(time), "end", x=left - 6, y=y + 4)
    sizes = sorted({size(row) for row in timed})
    for number in sizes[:: math.ceil(len(sizes) / 8)]:
        x = x_scale.of(math.log2(number))
        _draw(svg, "line", css="grid", x1=x, x2=x, y1=top, y2=bottom)
        _draw(svg, "text", f"{number:.15g}", "mid", x=x, y=bottom + 16)
    _draw(svg, "text", kernel.key[axis], "axis mid", x=(left + right) / 2, y=bottom + 34)
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
    return Plot(
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


def _draw(
    parent: ET.Element, tag: str, text: str = "", css: str = "", **attributes: object
) -> ET.Element:
    named = {"class": css} if css else {}
    mark = ET.SubElement(
        parent, tag, {**named, **{name: str(value) for name, value in attributes.items()}}
    )
    mark.text = text
    return mark
