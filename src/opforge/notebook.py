"""What notebooks show of opforge's records."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a caption; without a header where there is none."""
    head = f"<thead>{_row('th', header)}</thead>" if header else ""
    body = "".join(_row("td", row) for row in rows)
    caption = f"<caption>{html.escape(title)}</caption>"
    return f"<table>{caption}{head}<tbody>{body}</tbody></table>"


def _row(tag: str, cells: Sequence[str]) -> str:
    # Left-aligned and as broken into lines: texts, not numbers.
    style = "text-align:left;white-space:pre-wrap"
    return (
        "<tr>"
        + "".join(f'<{tag} style="{style}">{html.escape(cell)}</{tag}>' for cell in cells)
        + "</tr>"
    )
