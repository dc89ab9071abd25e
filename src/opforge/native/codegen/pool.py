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
        self._names: dict[tuple[str, str, str], str] = {}
        self._counts: Counter[str] = Counter()
        self.definitions: list[str] = []

    def array(self, element: str, kind: str, items: Sequence[str]) -> str:
        """`static const ELEMENT kind_0[] = {...}`; NULL for an empty one, which C forbids."""
        if not items:
            return "NULL"
        opening = f"static const {element} "
        line = f"[] = {{{', '.join(items)}}};"
        # As if the name had one character, so that its number does not change the layout.
        is_long = len(opening) + 1 + len(line) > 96
        if is_long or any(item.startswith(("{", "OF_CHECK")) for item in items):
            line = "\n".join(["[] = {", *(f"    {item}," for item in items), "};"])
        return self._define(kind, opening, line)

    def function(
        self, result: str, kind: str, parameters: str, body: Sequence[str], comment: str = ""
    ) -> str:
        """`static RESULT kind_0(PARAMETERS) {...}`, with a comment above it."""
        said = f"/* {comment} */\n" if comment else ""
        lines = [f"({parameters})", "{", *(f"    {b}" for b in body), "}"]
        return self._define(kind, f"{said}static {result} ", "\n".join(lines))

    def _define(self, kind: str, before: str, after: str) -> str:
        """Before and after the name."""
        key = kind, before, after
        if key not in self._names:
            name = self._names[key] = f"{kind}_{self._counts[kind]}"
            self._counts[kind] += 1
            self.definitions.append(before + name + after)
        return self._names[key]
