"""The GPU that host code queries; a trace knows only its architectures."""

from __future__ import annotations

from typing import Any

from ... import _compat
from ...errors import CannotTrace
from ...gpu_target import gpu_of
from ..ir.device_attributes import ATTRIBUTES, MAJOR, MINOR, PREFIX
from ..ir.expr import Expr, Number, Term, Var
from ..symbolic.solve import VarRange
from ..symbolic.symint import Symbols

# Host code reads these by name, and the capability in other ways.
_NAMED = tuple(name for name in ATTRIBUTES if name not in {"major", "minor"})


def var_ranges(archs: tuple[int, ...]) -> dict[str, VarRange]:
    found = {PREFIX + name: VarRange(1, 2**40) for name in _NAMED}
    found[f"{PREFIX}warp_size"] = VarRange(32, 32, (32,))
    found[MAJOR] = VarRange(0, 99, tuple(sorted({a // 10 for a in archs})))
    found[MINOR] = VarRange(0, 9, tuple(sorted({a % 10 for a in archs})))
    return found


def values(arch: int) -> dict[str, Number]:
    """The properties of a common board of an architecture."""
    gpu = gpu_of(arch)
    found: dict[str, Number] = {PREFIX + n: getattr(gpu, n) for n in _NAMED}
    return found | {MAJOR: arch // 10, MINOR: arch % 10}


def is_one_of(archs: tuple[int, ...]) -> Term:
    """The condition that the device is one of these."""
    pairs = [
        Expr("and", (Expr("==", (Var(MAJOR), a // 10)), Expr("==", (Var(MINOR), a % 10))))
        for a in archs
    ]
    return pairs[0] if len(pairs) == 1 else Expr("or", tuple(pairs))


class TracedGpu(_compat.driver.Gpu):
    """Answers with variables; a branch on one becomes a guard."""

    def __init__(self, symbols: Symbols) -> None:
        major, minor = symbols.integer(Var(MAJOR)), symbols.integer(Var(MINOR))
        asked = {name: symbols.integer(Var(PREFIX + name)) for name in _NAMED}
        asked["warp_size"] = 32
        super().__init__(arch=major * 10 + minor, name=_NoAnswer("name"), **asked)  # type: ignore[arg-type]
        object.__setattr__(self, "_capability", (major, minor))
        object.__setattr__(self, "total_memory", _NoAnswer("total_memory"))

    @property
    def key(self) -> str:
        return "traced"

    @property
    def capability(self) -> tuple[int, int]:
        found: tuple[int, int] = self._capability  # type: ignore[attr-defined]
        return found


class _NoAnswer:
    """A property that a native library cannot query; using it raises."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        name = object.__getattribute__(self, "_name")
        raise CannotTrace(
            f"the body reads the GPU's {name}, which a native library cannot query",
            fix="branch on the capability, the number of multiprocessors or the shared memory",
        )

    __str__ = __contains__ = __eq__ = __lt__ = __gt__ = __le__ = __ge__ = _refuse
    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __bool__ = __int__ = _refuse
    __getattr__ = __hash__ = _refuse
