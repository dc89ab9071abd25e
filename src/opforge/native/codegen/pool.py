"""The definitions of a C file; equal ones are written once.

An op over three dtypes has the same sizes, guards and arguments for each; they become
one `bind_0`, one `guards_0` and one `numbers_0`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


class Pool:
    """Static arrays and functions, numbered by kind in the order they are first needed."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}
        self._counts: Counter[str] = Counter()
        self.definitions: list[str] = []

    def array(self, element: str, kind: str, items: Sequence[str]) -> str:
        """`static const ELEMENT kind_0[] = {...}`; NULL for an empty one, which C forbids."""
        if not items:
            return "NULL"
        line = f"static const {element} @[] = {{{', '.join(items)}}};"
        if len(line) > 96 or any(item.startswith(("{", "OF_CHECK")) for item in items):
            lines = [f"static const {element} @[] = {{", *(f"    {item}," for item in items), "};"]
            line = "\n".join(lines)
        return self._define(kind, line)

    def function(
        self, result: str, kind: str, parameters: str, body: Sequence[str], comment: str = ""
    ) -> str:
        """`static RESULT kind_0(PARAMETERS) {...}`, with a comment above it."""
        lines = [f"static {result} @({parameters})", "{", *(f"    {b}" for b in body), "}"]
        if comment:
            lines.insert(0, f"/* {comment} */")
        return self._define(kind, "\n".join(lines))

    def _define(self, kind: str, text: str) -> str:
        if (kind, text) not in self._names:
            name = self._names[kind, text] = f"{kind}_{self._counts[kind]}"
            self._counts[kind] += 1
            self.definitions.append(text.replace("@", name, 1))
        return self._names[kind, text]
