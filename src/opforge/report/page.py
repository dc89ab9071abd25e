"""A page of tables and figures that needs nothing else: no network, no other file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import __version__
from .charts import Figure, series_class

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
