"""Why a launch is not served, and what would help."""

from __future__ import annotations

from typing import NamedTuple

from .. import _compat

COVER = "record it with `opforge record`, and build again with `opforge build`"
_NOTES = "fix what `opforge build --force ...` notes about it"
_ALWAYS = "such launches are always Triton's; serve without strict to allow them"


class Gap(NamedTuple):
    """`reason` is one of few, without values; `told` has the values of one launch.

    Where recording would not help, `fix` says what would. A call that Triton refuses is its own to
    refuse, in strict mode, too.
    """

    reason: str
    told: str
    fix: str = COVER
    is_refused: bool = False

    def warning(self, name: str) -> str:
        said = f"{name} is launched by Triton: {self.told}"
        return said if self.fix == _ALWAYS else f"{said}. To serve it, {self.fix}"


def gap(reason: str, fix: str = COVER) -> Gap:
    return Gap(reason, reason, fix)


def from_extension(reason: str, told: str, remedy: str) -> Gap:
    """As the extension tells it."""
    if remedy == "arch":
        return other_arch(reason)
    fixes = {"record": COVER, "build": _NOTES}
    return Gap(reason, told, fixes.get(remedy, _ALWAYS), remedy == "call")


def other_arch(reason: str) -> Gap:
    """Nothing was built for the current device."""
    arch = _compat.device.device_arch()
    return gap(reason, f"build again with `opforge build ... --arch {arch}`")


def undeclared(name: str) -> Gap:
    """A parameter is given a constant, and has no annotation that says so."""
    return gap(
        f"{name} is a constant, but not annotated as tl.constexpr",
        f"annotate it ({name}: tl.constexpr), record it and build again",
    )
