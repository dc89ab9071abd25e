"""Autotuned kernels in Triton's interpreter, where times mean nothing and measuring needs a GPU."""

from __future__ import annotations

from typing import Any

from .. import _compat

_autotuning, _kernels = _compat.autotuning, _compat.kernels


def unmeasured(kernel: Any) -> list[Any]:
    """The autotuners of a kernel that have a choice and nothing to measure."""
    if not _kernels.is_interpreted(kernel):
        return []
    return [part for part in _kernels.chain(kernel) if _autotuning.has_choice(part)]


def choose_first(kernel: Any) -> None:
    """Let the interpreter take the first configuration, unless a table in use has another."""
    for tuner in unmeasured(kernel):
        _autotuning.take_first(tuner)
