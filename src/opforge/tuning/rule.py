"""Which row of a table serves a launch: the one measured there, else the nearest.

Numbers, bools and texts that are not integers must be equal. Integers are matched one after
the other, in the order of the key: each goes to the nearest measured one among the rows that are
left, in ratio, so that the border between 64 and 1024 is 256, which still belongs to 64.

    rows at m = 16, 256, 4096     m = 100 -> 256     m = 1 -> 16     m = 10**6 -> 4096

Values may be symbolic: only comparisons are asked for, and none where all rows that are left have
the same configuration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .table import TuningRow


def nearest(rows: Sequence[TuningRow], values: Sequence[Any]) -> TuningRow | None:
    """The row for values of the key; None where one that must be equal is not."""
    left = list(rows)
    integers = []
    for place, value in enumerate(values):
        if all(_is_integer(row.at[place]) for row in left) and not isinstance(
            value, (bool, float, str, type(None))
        ):
            integers.append(place)
            continue
        left = [row for row in left if _equal(row.at[place], value)]
    for place in integers:
        left = _narrow(left, place, values[place])
    return left[0] if left else None


def _narrow(rows: list[TuningRow], place: int, value: Any) -> list[TuningRow]:
    """Half of the measured values go with each question."""
    while rows and len({row.config for row in rows}) > 1:
        measured = sorted({int(row.at[place]) for row in rows})  # type: ignore[arg-type]
        if len(measured) == 1:
            break
        middle = len(measured) // 2
        if value <= border(measured[middle - 1], measured[middle]):
            rows = [row for row in rows if row.at[place] < measured[middle]]  # type: ignore[operator]
        else:
            rows = [row for row in rows if row.at[place] >= measured[middle]]  # type: ignore[operator]
    return rows


def border(low: int, high: int) -> int:
    """The last value that is nearer to the lower of two: their geometric mean, rounded down."""
    return math.isqrt(low * high) if low > 0 else (low + high) // 2


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)
