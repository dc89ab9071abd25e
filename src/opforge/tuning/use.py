"""`opforge.use_tuning`: the JIT takes configurations from a table instead of measuring."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from .. import _compat
from ..arch import Arch
from ..errors import warn
from .choose import Choice, choose, source_of
from .table import TuningTable, load

_autotuning, _kernels = _compat.autotuning, _compat.kernels


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
