"""Counts, sizes and tables, as messages, prompts and notebooks show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_STYLE = "text-align:left;vertical-align:top;white-space:pre-wrap"


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a caption; `header` may be empty."""
    # Imported here: only notebooks need it, and records are in every import of opforge.
    from html import escape  # noqa: PLC0415

    def row(tag: str, cells: Iterable[str]) -> str:
        shown = "".join(f'<{tag} style="{_STYLE}">{escape(cell)}</{tag}>' for cell in cells)
        return f"<tr>{shown}</tr>"

    head = f"<thead>{row('th', header)}</thead>" if header else ""
    body = "".join(row("td", cells) for cells in rows)
    return f"<table><caption>{escape(title)}</caption>{head}<tbody>{body}</tbody></table>"


def size(count: int) -> str:
    """`3.2 MB`, in powers of ten as the limits of `opforge report` are."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        # From 999.5 of a unit on, three digits are one of the next.
        if count >= 0.9995 * factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} B"


def counted(number: int, noun: str) -> str:
    """`1 kernel`, `2 kernels`, `no kernels`; `2 launches`."""
    ending = "" if number == 1 else "es" if noun.endswith(("ch", "s")) else "s"
    return f"{number or 'no'} {noun}{ending}"
