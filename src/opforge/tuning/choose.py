"""From a launch of an autotuned kernel to one of its configurations, by a table."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import _compat
from ..arch import Arch
from ..notebook import counted
from .rule import nearest
from .table import TunedKernel, TuningTable, as_config

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
