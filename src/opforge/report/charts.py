"""Heat maps and plots as geometry; `templates/charts.html` draws them as SVG."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..tuning.table import TunedKernel, TuningRow, Value
from .model import Timed

# A page with more of them would not be read; the table below them has every row.
MOST_MAPS = 24
MOST_LINES = 12

# All in pixels.
_CELL_WIDTH, _CELL_HEIGHT = 76, 30
_WIDTH, _HEIGHT = 560, 300
_BAR, _BAR_ROOM = 15, 14


@dataclass(frozen=True)
class Frame:
    """Where the drawing stands within its figure; labels are outside of it."""

    left: int
    top: int
    right: int
    bottom: int
    width: int
    height: int


@dataclass(frozen=True)
class Tick:
    """A mark of an axis, in pixels."""

    at: float
    text: str


@dataclass(frozen=True)
class HeatCell:
    """Its middle, and its `heat`: 0 for the shortest time of a kernel, 100 for the longest."""

    x: float
    y: float
    text: str
    title: str
    heat: float


@dataclass(frozen=True)
class HeatMap:
    """Times over two parts of a key; `fixed` has the values of the others."""

    fixed: str
    x_name: str
    y_name: str
    columns: tuple[Tick, ...]
    rows: tuple[Tick, ...]
    cells: tuple[HeatCell, ...]
    frame: Frame
    cell_width: int = _CELL_WIDTH
    cell_height: int = _CELL_HEIGHT


@dataclass(frozen=True)
class Line:
    """A series; points are pixels and what is said of them."""

    label: str
    points: tuple[tuple[float, float, str], ...]

    @property
    def path(self) -> str:
        return " ".join(f"{x},{y}" for x, y, _ in self.points)


@dataclass(frozen=True)
class Plot:
    """Times over one part of a key, both logarithmic."""

    frame: Frame
    x_name: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    left_out: int


@dataclass(frozen=True)
class Bar:
    """One time."""

    y: int
    width: float
    text: str
    series: int


@dataclass(frozen=True)
class Bars:
    """Times of operators beside those that they are compared with."""

    title: str
    series: tuple[str, ...]
    labels: tuple[Tick, ...]
    bars: tuple[Bar, ...]
    frame: Frame
    thickness: int = _BAR


def heat_maps(kernel: TunedKernel, rows: Sequence[TuningRow]) -> list[HeatMap]:
    """A map for each combination of what is not on its axes."""
    across, down = _axes(kernel, rows)
    others = [i for i in range(len(kernel.key)) if i not in {across, down}]
    groups: dict[tuple[Value, ...], list[TuningRow]] = {}
    for row in _ordered(rows):
        groups.setdefault(tuple(row.at[i] for i in others), []).append(row)
    scale = _Scale(row.us for row in rows)
    made = []
    for fixed, members in groups.items():
        named = ", ".join(
            f"{kernel.key[i]}={value}" for i, value in zip(others, fixed, strict=True)
        )
        made.append(_map(kernel, members, across, down, named, scale))
    return made


def _map(  # noqa: PLR0917  # a map and where it stands among its siblings
    kernel: TunedKernel,
    rows: Sequence[TuningRow],
    across: int | None,
    down: int | None,
    fixed: str,
    scale: _Scale,
) -> HeatMap:
    columns, lines = _values(rows, across), _values(rows, down)
    frame = _frame(84, 36, _CELL_WIDTH * len(columns), _CELL_HEIGHT * len(lines), 4)
    x_of = {value: frame.left + _CELL_WIDTH * (i + 0.5) for i, value in enumerate(columns)}
    y_of = {value: frame.top + _CELL_HEIGHT * (i + 0.5) for i, value in enumerate(lines)}
    return HeatMap(
        fixed=fixed,
        x_name="" if across is None else kernel.key[across],
        y_name="" if down is None else kernel.key[down],
        columns=tuple(Tick(x, _text(value)) for value, x in x_of.items()),
        rows=tuple(Tick(y, _text(value)) for value, y in y_of.items()),
        cells=tuple(
            HeatCell(
                x_of[_at(row, across)],
                y_of[_at(row, down)],
                duration(row.us),
                ", ".join(f"{name}={value}" for name, value in row.config),
                scale.of(row.us),
            )
            for row in rows
        ),
        frame=frame,
    )


def _frame(left: int, top: int, width: int, height: int, below: int) -> Frame:
    right, bottom = left + width, top + height
    return Frame(left, top, right, bottom, right + 28, bottom + below)


def _axes(kernel: TunedKernel, rows: Sequence[TuningRow]) -> tuple[int | None, int | None]:
    """The two parts of the key with the most values, numbers before words.

    A part with one value is the same in every row, and on neither axis.
    """
    counts = {i: len({_exact(row.at[i]) for row in rows}) for i in range(len(kernel.key))}

    def rank(i: int) -> tuple[bool, int]:
        return not all(_is_number(row.at[i]) for row in rows), -counts[i]

    varied = sorted((i for i in counts if counts[i] > 1), key=rank)
    first, second, *_ = [*varied, None, None]
    return first, second


def _values(rows: Sequence[TuningRow], axis: int | None) -> list[tuple[str, Any]]:
    return sorted({_at(row, axis) for row in rows})


def _at(row: TuningRow, axis: int | None) -> tuple[str, Any]:
    return ("", "") if axis is None else _exact(row.at[axis])


def _exact(value: Value) -> tuple[str, Any]:
    """Sortable, and True is not 1."""
    if _is_number(value):
        return "", value
    return type(value).__name__, str(value)


def _text(value: tuple[str, Any]) -> str:
    return str(value[1])


def _ordered(rows: Iterable[TuningRow]) -> list[TuningRow]:
    return sorted(rows, key=lambda row: [_exact(value) for value in row.at])


class _Scale:
    """Logarithmic, because times differ by orders of magnitude."""

    def __init__(self, times: Iterable[float]) -> None:
        logs = [math.log(time) for time in times if time > 0]
        self._low, self._high = min(logs, default=0.0), max(logs, default=0.0)

    def of(self, time: float) -> float:
        if time <= 0 or self._high == self._low:
            return 0.0
        return round(100 * (math.log(time) - self._low) / (self._high - self._low), 1)


def plot(kernel: TunedKernel, rows: Sequence[TuningRow]) -> Plot | None:
    """Over the number of the key that varies most; None if there are not two to connect."""
    numbers = [i for i in range(len(kernel.key)) if all(_is_size(row.at[i]) for row in rows)]
    counts = {i: len({row.at[i] for row in rows}) for i in numbers}
    axis = max(numbers, key=lambda i: counts[i], default=None)
    timed = [row for row in _ordered(rows) if row.us > 0]
    if axis is None or counts[axis] < 2 or not timed:
        return None
    series: dict[str, list[TuningRow]] = {}
    for row in timed:
        others = [f"{name}={row.at[i]}" for i, name in enumerate(kernel.key) if i != axis]
        series.setdefault(", ".join(others) or "time", []).append(row)
    at = {id(row): float(str(row.at[axis])) for row in timed}
    frame = _frame(64, 12, _WIDTH - 92, _HEIGHT - 52, 40)
    x_axis = _Axis([*at.values()], frame.left, frame.right, 2)
    y_axis = _Axis([row.us for row in timed], frame.bottom, frame.top, 10)
    lines = [
        Line(
            label,
            tuple(
                (x_axis.of(at[id(row)]), y_axis.of(row.us), _said(kernel, row))
                for row in sorted(members, key=lambda row: at[id(row)])
            ),
        )
        for label, members in series.items()
    ]
    sizes = _thinned(sorted(set(at.values())))
    x_ticks = tuple(Tick(x_axis.of(size), f"{size:.15g}") for size in sizes)
    left_out = max(0, len(lines) - MOST_LINES)
    return Plot(
        frame, kernel.key[axis], x_ticks, y_axis.ticks(), tuple(lines[:MOST_LINES]), left_out
    )


def _is_number(value: Value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_size(value: Value) -> bool:
    """Something that a logarithmic axis can have."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _said(kernel: TunedKernel, row: TuningRow) -> str:
    at = ", ".join(f"{name}={value}" for name, value in zip(kernel.key, row.at, strict=True))
    return f"{at}: {duration(row.us)}"


def _thinned(values: list[float], most: int = 8) -> list[float]:
    step = math.ceil(len(values) / most)
    return values[::step]


class _Axis:
    """From numbers to pixels, by their logarithms."""

    def __init__(self, values: Sequence[float], start: int, end: int, base: int) -> None:
        self._base, self._start, self._end = base, start, end
        logs = [math.log(value, base) for value in values]
        low, high = min(logs), max(logs)
        # One time alone stands in the middle.
        margin = 0.05 * (high - low) or 0.5
        self._low, self._high = low - margin, high + margin

    def of(self, value: float) -> float:
        part = (math.log(value, self._base) - self._low) / (self._high - self._low)
        return round(self._start + part * (self._end - self._start), 1)

    def ticks(self) -> tuple[Tick, ...]:
        """1, 2 and 5 of each decade within the range, or its ends."""
        decades = range(math.floor(self._low) - 1, math.ceil(self._high) + 1)
        marks = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
        kept = [mark for mark in marks if self._low <= math.log10(mark) <= self._high]
        if len(kept) > 8:
            kept = [mark for mark in kept if f"{mark:e}".startswith("1")]
        if len(kept) < 2:
            kept = [10**self._low, 10**self._high]
        return tuple(Tick(self.of(mark), duration(mark)) for mark in kept)


def bars(times: Sequence[Timed]) -> list[Bars]:
    """A chart for each dtype and device.

    An operator's longest bar is as wide as the chart: what is compared are times of one operator.
    """
    groups: dict[tuple[str, str], list[Timed]] = {}
    for timed in times:
        groups.setdefault((timed.dtype, timed.device), []).append(timed)
    return [_bars(", ".join(filter(None, key)), members) for key, members in groups.items()]


def _bars(title: str, times: Sequence[Timed]) -> Bars:
    series = tuple(dict.fromkeys(itertools.chain(*(timed.microseconds for timed in times))))
    labels, drawn, y = [], [], 0
    for timed in times:
        longest = max(timed.microseconds.values(), default=0.0) or 1.0
        labels.append(Tick(y + _BAR * len(timed.microseconds) / 2, timed.op))
        for label, us in timed.microseconds.items():
            width = max(1.0, us / longest * (_WIDTH - 90))
            drawn.append(Bar(y, round(width, 1), duration(us), series.index(label)))
            y += _BAR
        y += _BAR_ROOM
    return Bars(title, series, tuple(labels), tuple(drawn), _frame(160, 0, _WIDTH - 28, y, 0))


def duration(us: float) -> str:
    """`12.1 us`, `3.4 ms`."""
    if us >= 1e6:
        return f"{us / 1e6:.3g} s"
    if us >= 1e3:
        return f"{us / 1e3:.3g} ms"
    return f"{us:.3g} us"
