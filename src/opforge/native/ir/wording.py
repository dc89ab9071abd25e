"""Values and lists of values, as messages spell them."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any


def spell(value: Any) -> str:
    """A value as it is written in Python: `Mode.FAST`, `'relu'`, `torch.float16`."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    return repr(value)


def one_of(words: Iterable[str]) -> str:
    """`a, b or c`."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
