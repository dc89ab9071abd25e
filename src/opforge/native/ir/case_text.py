"""A case, and the conditions of its paths, in words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...arch import HIP, Arch
from .cases import Case, Path
from .device_attributes import ARCH, VENDOR
from .expr import text_of_all
from .interface import ChoiceParam, Param

_VENDOR_NUMBER = re.compile(rf"({re.escape(VENDOR)} [!=]= )(\d+)")
_ARCH_NUMBER = re.compile(
    rf"(?P<before>{re.escape(ARCH)} [!=<>]=? )(?P<right>\d+)"
    rf"|(?P<left>\d+)(?P<behind> [!=<>]=? {re.escape(ARCH)})"
)


def describe(case: Case, params: Sequence[Param]) -> str:
    """`x fp16 2-d, w absent, mode 'fast'` for messages."""
    parts = [
        f"{t.param} {t.dtype} {len(t.shape)}-d" if t.present else f"{t.param} absent"
        for t in case.tensors
    ]
    values = {p.name: p.values for p in params if isinstance(p, ChoiceParam)}
    return ", ".join([*parts, *(f"{n} {values[n][i]}" for n, i in case.choices)])


def conditions(path: Path) -> str:
    """The guards of a path: `n != 0 and device.vendor == AMD`."""
    return with_names(text_of_all([guard.condition for guard in path.guards]))


def with_names(condition: str) -> str:
    """For people: `device.vendor == AMD and device.arch == gfx942`."""

    # Only of AMD's GPUs is it asked.
    def arch(found: re.Match[str]) -> str:
        name = Arch(HIP, int(found["right"] or found["left"]))
        return f"{found['before'] or ''}{name}{found['behind'] or ''}"

    named = _VENDOR_NUMBER.sub(lambda m: f"{m[1]}{('NVIDIA', 'AMD')[int(m[2])]}", condition)
    return _ARCH_NUMBER.sub(arch, named)
