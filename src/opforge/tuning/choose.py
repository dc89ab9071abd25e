"""From a launch of an autotuned kernel to one of its configurations, by a table.

A row serves the launch that was measured, else the nearest one. Numbers, bools and texts that are
not integers must be equal. Integers are matched one after the other, in the order of the key: each
goes to the nearest measured one among the rows that are left, in ratio, so that the border between
64 and 1024 is 256, which still belongs to 64.

    rows at m = 16, 256, 4096     m = 100 -> 256     m = 1 -> 16     m = 10**6 -> 4096

Values may be symbolic: only comparisons are asked for, and none where all rows that are left have
the same configuration.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import _compat
from ..arch import Arch
from ..notebook import counted
from .table import TunedKernel, TuningRow, TuningTable, as_config

_autotuning, _kernels = _compat.autotuning, _compat.kernels

_sources: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Choice:
    """The index of an autotuner's configuration, or None and why."""

    index: int | None
    why: str = ""
    # The name of the table's file, where one was asked, and the architecture of its rows.
    table: str = ""
    arch: str = ""


def choose(
    table: TuningTable,
    tuner: Any,
    arch: Arch | None,
    dtypes: tuple[str, ...],
    values: Sequence[Any],
    *,
    archs: Callable[[], Sequence[Arch]] | None = None,
    source: str | None = None,
) -> Choice:
    """What a table says about a launch; `arch.number` and `values` may be symbolic.

    Where `arch` is, `archs` tells which ones it may be. `source` is what the rows of this very
    kernel have, where the caller knows it: to hash the kernel's takes milliseconds.
    """
    name = _kernels.kernel_name(tuner)
    source = source_of(tuner) if source is None else source
    named = [k for k in table.rows if k.name == name]
    known = [k for k in named if k.source == source]
    if named and not known:
        stale = counted(sum(len(table.rows[k]) for k in named), "row")
        why = f"{stale} for it, all stale: its source has changed (tune it again)"
        return Choice(None, why)
    keyed = [k for k in known if _has_key(k, tuner, len(values))]
    if known and not keyed:
        others = "; ".join(sorted({", ".join(k.key) for k in known}))
        return Choice(None, f"rows for it under a different key only ({others}; tune it again)")
    fitting = [k for k in keyed if k.dtypes == dtypes]
    kernel = next((k for k in fitting if bool(arch == Arch.named(k.arch))), None)
    if kernel is None:
        here = [] if arch is None else [arch] if archs is None else archs()
        return Choice(None, f"no rows for {_listed(known, fitting, dtypes, here)}")
    configs = [config_of(config) for config in tuner.configs]
    rows = [row for row in table.rows[kernel].values() if row.config in configs]
    if not rows:
        why = "but only with configurations that were taken out of the kernel (tune it again)"
        return Choice(None, f"rows for it on {kernel.arch}, {why}")
    row = nearest(rows, values)
    if row is None:
        return Choice(None, f"no row for these values of its key on {kernel.arch}")
    return Choice(configs.index(row.config), arch=kernel.arch)


def _has_key(kernel: TunedKernel, tuner: Any, count: int) -> bool:
    """Whether rows have this autotuner's key; Triton leaves out what a launch does not pass."""
    return len(kernel.key) == count and [n for n in tuner.keys if n in kernel.key] == [*kernel.key]


def config_of(config: Any) -> tuple[tuple[str, Any], ...]:
    """A configuration as tables store it."""
    values = config.all_kwargs().items()
    return as_config({name: _autotuning.plain(value) for name, value in values})


def source_of(tuner: Any) -> str:
    found = _sources.get(tuner)
    if found is None:
        found = _sources[tuner] = _autotuning.source_hash(tuner)
    return found


def _listed(
    known: list[TunedKernel],
    fitting: list[TunedKernel],
    dtypes: tuple[str, ...],
    here: Sequence[Arch],
) -> str:
    if not known:
        return "it"
    if fitting:
        missing = " or ".join(map(str, here)) or "this machine"
        return f"{missing}, only for {', '.join(sorted({k.arch for k in fitting}))}"
    return f"tensors of {', '.join(dtypes)}"


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
