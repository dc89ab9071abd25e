"""Measured times, in the JSON that `benchmarks/ops.py --json` writes.

{"device": "NVIDIA H200",
 "rows": [{"op": "silu", "dtype": "bf16", "microseconds": {"op": 21.4, "torch": 22.0}}]}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import BadOption
from ..records import BadField, Between, Codecs, each, field, keep_to, read_at
from .model import Timed

_MICROSECONDS = Between(0, 10**15)
_TIMES = Codecs({}).of(Mapping[str, float])


def read_times(content: Any, where: str) -> tuple[Timed, ...]:
    """Errors call the file `where`."""
    try:
        return _rows(content)
    except BadField as error:
        raise BadOption(
            f"{where} has no measured times", found=str(error),
            fix='write {"rows": [{"op": "silu", "dtype": "bf16", "microseconds": {"op": 21.4}}]}',
        ) from None  # fmt: skip


def _rows(content: Any) -> tuple[Timed, ...]:
    device: str = field(content, "device", str, "")
    rows: tuple[Timed, ...] = each(content, "rows", lambda row: _row(row, device))
    if not rows:
        raise BadField("is empty", "rows")
    return rows


def _row(content: Any, device: str) -> Timed:
    return Timed(
        op=field(content, "op", str),
        microseconds=_times(field(content, "microseconds", dict)),
        dtype=field(content, "dtype", str, ""),
        device=device,
    )


def _times(content: dict[str, Any]) -> dict[str, float]:
    times: dict[str, float] = read_at("microseconds", _TIMES, content)
    for name, time in times.items():
        keep_to(_MICROSECONDS, time, f"microseconds.{name}")
    if not times:
        raise BadField("is empty", "microseconds")
    return times
