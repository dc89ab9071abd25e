"""From a launch of an autotuned kernel to one of its configurations, by a table.

`opforge.use_tuning` lets the JIT take configurations from one instead of measuring.

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
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import _compat
from ..arch import Arch
from ..errors import warn
from ..notebook import counted
from .table import TunedKernel, TuningRow, TuningTable, as_config, load

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


class _Current(_autotuning.Adviser):
    """The table in use."""

    def __init__(self) -> None:
        self.table = TuningTable()
        # The names of its files.
        self.names: tuple[str, ...] = ()
        self._told: set[tuple[str, str]] = set()
        self._pinned: dict[tuple[int, int], tuple[Any, Any]] = {}

    def change(self, table: TuningTable, names: tuple[str, ...] = ()) -> None:
        self.table, self.names = table, names
        _autotuning.ask_again()
        self._told.clear()

    def advise(self, tuner: Any, key: tuple[Any, ...]) -> Any:
        """What an autotuner asks before it measures."""
        if not len(self.table):
            return None
        values, dtypes = _autotuning.split_key(key)
        if not _kernels.is_interpreted(tuner):
            return self._config(tuner, choose(self.table, tuner, _arch(), dtypes, values))
        # Every GPU's rows will do, the newest first, and nothing is measured without a row.
        for arch in sorted({Arch.named(k.arch) for k in self.table.rows}, reverse=True):
            choice = choose(self.table, tuner, arch, dtypes, values)
            if choice.index is not None:
                return tuner.configs[choice.index]
        return None

    def pin(self, tuner: Any, arguments: dict[str, Any]) -> Any:
        """An autotuner for a graph, with only the configuration that the table has for a launch."""
        if not len(self.table):
            return tuner
        names = _autotuning.key_names(tuner, arguments)
        values = [_autotuning.hint(_autotuning.plain(arguments[n])) for n in names]
        dtypes = _autotuning.dtypes_of(tuner, arguments)
        choice = choose(self.table, tuner, _arch(), dtypes, values)
        if self._config(tuner, choice) is None:
            return tuner
        assert choice.index is not None
        place = (id(tuner), choice.index)
        # The same object for the same choice: torch numbers kernels by identity.
        if place not in self._pinned or self._pinned[place][0] is not tuner:
            one = _autotuning.with_one_config(tuner, tuner.configs[choice.index])
            self._pinned[place] = (tuner, one)
        return self._pinned[place][1]

    def _config(self, tuner: Any, choice: Choice) -> Any:
        if choice.index is not None:
            return tuner.configs[choice.index]
        name = _kernels.kernel_name(tuner)
        if (name, choice.why) not in self._told:
            self._told.add((name, choice.why))
            warn(
                f"{name} ({_kernels.kernel_location(tuner)}) is measured at its first call: "
                f"the tuning table has {choice.why}"
            )
        return None


_current = _Current()


def use_tuning(path: str | os.PathLike[str] | None) -> None:
    """Take configurations of autotuned kernels from a table, in eager and torch.compile.

        opforge.use_tuning("tuning.json")

    A kernel in the table is not measured at its first call; a kernel that is not warns once.
    Tables accumulate, and later ones win; None drops them all.
    """
    if path is None:
        _current.change(TuningTable())
        _autotuning.ask_no_more()
        return
    table = TuningTable()
    table.update(_current.table)
    table.update(load(path))
    _current.change(table, tuple(dict.fromkeys((*_current.names, Path(path).name))))
    _kernels.load_triton()
    _autotuning.ask_first(_current)


def table_in_use() -> tuple[TuningTable, str]:
    """The rows of all tables in use, and the names of their files."""
    return _current.table, " and ".join(_current.names)


def pinned(kernel: Any, arguments: dict[str, Any]) -> Any:
    """The kernel that a graph should launch."""
    if not _autotuning.has_choice(kernel):
        return kernel
    return _current.pin(kernel, arguments)


def rows_of(kernel: Any) -> list[str]:
    """What the table in use has for a kernel, for a cache key and for people."""
    tuners = [part for part in _kernels.chain(kernel) if _autotuning.has_choice(part)]
    return [
        f"{k}: at {dict(zip(k.key, row.at, strict=True))} {dict(row.config)}"
        for tuner in tuners
        for k, rows in _current.table.rows.items()
        if k.name == _kernels.kernel_name(tuner) and k.source == source_of(tuner)
        for row in rows.values()
    ]


def _arch() -> Arch | None:
    """Of the GPU that is traced for, or of this machine's."""
    gpu = _compat.driver.current()
    if gpu is not None:
        return gpu.arch
    return _compat.device.device_arch() if torch.cuda.is_available() else None


def unmeasured(kernel: Any) -> list[Any]:
    """The autotuners of a kernel that have a choice and nothing to measure."""
    if not _kernels.is_interpreted(kernel):
        return []
    return [part for part in _kernels.chain(kernel) if _autotuning.has_choice(part)]


def choose_first(kernel: Any) -> None:
    """Let the interpreter take the first configuration, unless a table in use has another."""
    for tuner in unmeasured(kernel):
        _autotuning.take_first(tuner)
