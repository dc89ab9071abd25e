"""The GPU that host code queries; a trace knows only its architectures."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

from ... import _compat
from ...arch import CUDA, Arch
from ...errors import UnsupportedBody
from ...gpu_target import gpu_of
from ..ir.abi import ARCH, ATTRIBUTES, MAJOR, MINOR, PREFIX, VENDOR
from ..ir.cases import Guard
from ..ir.expr import Expr, Number, Term, Var, evaluate, variables
from ..symbolic.algebra import Algebra
from ..symbolic.solve import VarRange
from ..symbolic.symint import Symbols

# What the architecture tells; the others are a board's, and host code reads them by name.
_OF_ARCH = ("warp_size", "major", "minor")
_NAMED = tuple(name for name in ATTRIBUTES if name not in _OF_ARCH)


def var_ranges(archs: tuple[Arch, ...]) -> dict[str, VarRange]:
    """What a device may answer; the architectures are one vendor's."""
    found = {PREFIX + name: VarRange(1, 2**40) for name in _NAMED}
    for name in told(archs[0]):
        values = tuple(sorted({told(arch)[name] for arch in archs}))
        found[name] = VarRange(0, values[-1], values)
    return found


def values(arch: Arch) -> dict[str, Number]:
    """The properties of a common board of an architecture."""
    gpu = gpu_of(arch)
    found: dict[str, Number] = {PREFIX + n: getattr(gpu, n) for n in _NAMED}
    return found | told(arch)


def told(arch: Arch) -> dict[str, int]:
    """The variables that tell an architecture from others of its vendor."""
    if arch.is_amd:
        return {ARCH: arch.number}
    return dict(zip((MAJOR, MINOR), arch.capability, strict=True))


def is_one_of(archs: tuple[Arch, ...]) -> Term:
    """The condition that the device is one of these, which are one vendor's."""
    algebra = Algebra({})
    known = [[Expr("==", (Var(n), v)) for n, v in told(arch).items()] for arch in archs]
    return algebra.either(*(algebra.both(*conditions) for conditions in known))


def allow(guards: Iterable[Guard], arch: Arch) -> bool:
    """Whether an architecture can take the path that these guard, for some sizes."""
    values = {VENDOR: arch.vendor, **told(arch)}
    return all(
        evaluate(guard.condition, values)
        for guard in guards
        if {v.name for v in variables(guard.condition)} <= values.keys()
    )


def traced_gpu(symbols: Symbols, archs: tuple[Arch, ...]) -> _compat.driver.Gpu:
    """What a trace for some architectures, all of one vendor, asks."""
    return _TracedAmdGpu(symbols, archs) if archs[0].is_amd else TracedGpu(symbols, archs)


def archs_left() -> list[Arch]:
    """The architectures that take the path which is traced, as far as it has come."""
    gpu = _compat.driver.current()
    assert isinstance(gpu, _Traced)
    return [arch for arch in gpu.archs if allow(gpu.symbols.guards, arch)]


class _Traced(_compat.driver.Gpu):
    """Answers with variables; a branch on one becomes a guard."""

    symbols: Symbols
    archs: tuple[Arch, ...]

    def __init__(self, symbols: Symbols, archs: tuple[Arch, ...], **given: Any) -> None:
        asked = {name: symbols.integer(Var(PREFIX + name)) for name in _NAMED}
        super().__init__(name=_NoAnswer("name"), **asked, **given)  # type: ignore[arg-type]
        object.__setattr__(self, "total_memory", _NoAnswer("total_memory"))
        object.__setattr__(self, "symbols", symbols)
        object.__setattr__(self, "archs", archs)

    @property
    def key(self) -> str:
        return "traced"


class TracedGpu(_Traced):
    """An NVIDIA GPU."""

    def __init__(self, symbols: Symbols, archs: tuple[Arch, ...]) -> None:
        major, minor = symbols.integer(Var(MAJOR)), symbols.integer(Var(MINOR))
        super().__init__(symbols, archs, arch=Arch(CUDA, major * 10 + minor))
        object.__setattr__(self, "_capability", (major, minor))

    @property
    def capability(self) -> tuple[int, int]:
        found: tuple[int, int] = self._capability  # type: ignore[attr-defined]
        return found


class _TracedAmdGpu(_Traced):
    """An AMD GPU, whose name is text: who asks for it goes one way for each architecture."""

    is_amd = True

    def __init__(self, symbols: Symbols, archs: tuple[Arch, ...]) -> None:
        super().__init__(symbols, archs, arch=archs[0])
        object.__setattr__(self, "_number", symbols.integer(Var(ARCH)))

    def __getattribute__(self, name: str) -> Any:
        if name in {"arch", "warp_size"}:
            *others, last = object.__getattribute__(self, "archs")
            number = object.__getattribute__(self, "_number")
            arch = next((a for a in others if bool(number == a.number)), last)
            return arch if name == "arch" else arch.warp_size
        return object.__getattribute__(self, name)

    def properties(self) -> types.SimpleNamespace:
        return _Properties(self)


class _Properties(types.SimpleNamespace):
    """Asks for the architecture only where somebody reads what it tells."""

    def __init__(self, gpu: _TracedAmdGpu) -> None:
        names = [name for name in gpu.__dataclass_fields__ if name not in {"arch", "warp_size"}]
        super().__init__(**{name: getattr(gpu, name) for name in names})
        self.L2_cache_size = gpu.l2_cache_size
        self._gpu = gpu

    def __getattr__(self, name: str) -> Any:
        if name in {"warp_size", "major", "minor", "gcnArchName"}:
            arch = self._gpu.arch
            major, minor = arch.capability
            found = {"major": major, "minor": minor, "gcnArchName": arch.of_hip}
            return found.get(name, arch.warp_size)
        raise AttributeError(name)


class _NoAnswer:
    """A property that a native library cannot query; using it raises."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        name = object.__getattribute__(self, "_name")
        raise UnsupportedBody(
            f"the body reads the GPU's {name}, which a native library cannot query",
            fix="branch on the capability, the number of multiprocessors or the shared memory",
        )

    __str__ = __contains__ = __eq__ = __lt__ = __gt__ = __le__ = __ge__ = _refuse
    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __bool__ = __int__ = _refuse
    __getattr__ = __hash__ = _refuse
