"""A case in words."""

from __future__ import annotations

from collections.abc import Sequence

from .cases import Case
from .interface import ChoiceParam, Param


def describe(case: Case, params: Sequence[Param]) -> str:
    """`x fp16 2-d, w absent, mode 'fast'` for messages."""
    parts = [
        f"{t.param} {t.dtype} {len(t.shape)}-d" if t.present else f"{t.param} absent"
        for t in case.tensors
    ]
    values = {p.name: p.values for p in params if isinstance(p, ChoiceParam)}
    return ", ".join([*parts, *(f"{n} {values[n][i]}" for n, i in case.choices)])
