"""Measured times, in the JSON that `benchmarks/ops.py --json` writes.

{"device": "NVIDIA H200",
 "rows": [{"op": "silu", "dtype": "bf16", "microseconds": {"op": 21.4, "torch": 22.0}}]}
"""

from __future__ import annotations

from typing import Any

from ..errors import BadReport
from ..records import BadField, Between, each, field, keep_to
from .model import Timed

_MICROSECONDS = Between(0, 10**15)


def read_times(content: Any, where: str) -> tuple[Timed, ...]:
    """Errors call the file `where`."""
    try:
        device: str = field(content, "device", str, "")
        rows: tuple[Timed, ...] = each(content, "rows", lambda row: _row(row, device))
    except BadField as error:
        raise BadReport(
            f"{where} has no measured times", found=str(error),
            fix='write {"rows": [{"op": "silu", "dtype": "bf16", "microseconds": {"op": 21.4}}]}',
        ) from None  # fmt: skip
    return rows


def _row(content: Any, device: str) -> Timed:
    times: dict[str, Any] = field(content, "microseconds", dict)
    return Timed(
        op=field(content, "op", str),
        microseconds={name: _time(times, name) for name in times},
        dtype=field(content, "dtype", str, ""),
        device=device,
    )


def _time(times: dict[str, Any], name: str) -> float:
    place = f"microseconds.{name}"
    time: float = keep_to(_MICROSECONDS, field(times, name, float), place)
    return time
