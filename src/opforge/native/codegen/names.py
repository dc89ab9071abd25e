"""C identifiers for what Python named."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .reserved import is_reserved


def part(name: str) -> str:
    """For the end of an identifier: `"größe"` -> `gr_u00f6_u00dfe`."""
    ascii_only = "".join(c if c.isascii() else f"_u{ord(c):04x}" for c in name)
    return re.sub(r"\W+", "_", ascii_only)


def identifier(name: str) -> str:
    """`"x.shape[0]"` -> `x_shape_0`, `"double"` -> `double_`."""
    return kept(part(name).rstrip("_") or "_")


def kept(name: str, taken: frozenset[str] = frozenset()) -> str:
    """A name as it is, even `"add_"`; `delete_` for a reserved one or one of `taken`."""
    plain = part(name)
    if plain[0].isdigit():
        plain = f"_{plain}"
    if is_reserved(plain):
        plain += "_"
    while plain in taken:
        plain += "_"
    return plain


def distinct(names: list[str], taken: frozenset[str] = frozenset()) -> dict[str, str]:
    """An identifier for each name, no two alike and none of `taken`."""
    chosen: dict[str, str] = {}
    for name in names:
        wanted = identifier(name)
        while wanted in taken or wanted in chosen.values():
            wanted += "_"
        chosen[name] = wanted
    return chosen


def packed(items: Sequence[str], closing: str, width: int) -> list[str]:
    """Items with commas between and `closing` behind them, on lines of this width."""
    lines: list[str] = []
    for i, item in enumerate(items):
        piece = item + (closing if i + 1 == len(items) else ",")
        if lines and len(lines[-1]) + 1 + len(piece) <= width:
            lines[-1] += f" {piece}"
        else:
            lines.append(piece)
    return lines


def macro(*parts: str) -> str:
    """`("mylib", "silu", "RELU")` -> `MYLIB_SILU_RELU`."""
    return "_".join(part(p).upper() for p in parts)


def quoted(text: str) -> str:
    r"""A C string literal; question marks are escaped because of trigraphs.

    Python carries bytes of a file's name that are not UTF-8 as lone surrogates, which are shown as
    `\udcff`: whoever reads the literal expects UTF-8.
    """
    written = []
    for byte in text.encode(errors="backslashreplace"):
        char = chr(byte)
        if char in '"\\?':
            written.append(f"\\{char}")
        elif char == "\n":
            written.append("\\n")
        elif 32 <= byte < 127:
            written.append(char)
        else:
            written.append(f"\\{byte:03o}")
    return '"' + "".join(written) + '"'


def comment(text: str) -> str:
    r"""Text that cannot end the comment it is in.

    A compiler joins lines and reads trigraphs before it looks for the end: `*\` and, on the next
    line, `/` end a comment. So no text has lines, nor characters that show it in another order.
    """
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    # Where a long comment is wrapped, this trigraph would join two lines.
    return shown.replace("??/", "?? /").replace("*/", "* /").replace("/*", "/ *")
