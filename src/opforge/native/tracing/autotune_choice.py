"""Picks the configuration of a traced launch from a tuning table.

The lookup runs on symbolic sizes, so its comparisons become guards of the library's paths, and so
does its choice by GPU.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from ... import _compat
from ...tuning.choose import Choice, choose
from ...tuning.table import TuningTable, load
from ...tuning.use import table_in_use
from .case_builder import first_config
from .launches import Choose
from .traced_gpu import archs_left


def by_table(path: str | os.PathLike[str] | None) -> Choose:
    """The rule that picks configurations in a build, with or without a table."""
    if path is None:
        return first_config
    return from_table(load(path), Path(path).name)


def in_use() -> Choose:
    """The same with the tables of `opforge.use_tuning`."""
    table, name = table_in_use()
    return from_table(table, name) if len(table) else first_config


def from_table(table: TuningTable, name: str) -> Choose:
    return lambda tuner, arguments: replace(_chosen(table, tuner, arguments), table=name)


def _chosen(table: TuningTable, tuner: Any, arguments: dict[str, Any]) -> Choice:
    if not _compat.autotuning.has_choice(tuner):
        return Choice(0)
    names = _compat.autotuning.key_names(tuner, arguments)
    values = [_compat.autotuning.plain(arguments[n]) for n in names]
    dtypes = _compat.autotuning.dtypes_of(tuner, arguments)
    gpu = _compat.driver.current()
    assert gpu is not None
    found = choose(table, tuner, gpu.arch, dtypes, values, archs=archs_left)
    if found.index is not None:
        return found
    return Choice(None, f"the tuning table has {found.why}, so")
