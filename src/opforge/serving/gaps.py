"""Why a launch is not served, and what would help."""

from __future__ import annotations

from typing import NamedTuple

from .. import _compat

COVER = "record it with `opforge record`, and build again with `opforge build`"
_NOTES = "fix what `opforge build --force ...` notes about it"
_ALWAYS = "such launches are always Triton's; serve without strict to allow them"


class Gap(NamedTuple):
    """`reason` is one of few, without values; `detail`, if there is one, has those of a launch.

    Where recording would not help, `fix` says what would. A call that Triton refuses is its own to
    refuse, in strict mode, too.
    """

    reason: str
    fix: str = COVER
    detail: str = ""
    is_refused: bool = False

    def __str__(self) -> str:
        return self.detail or self.reason

    def warning(self, name: str, instead: str) -> str:
        said = f"{name} is {instead}: {self}"
        return said if self.fix == _ALWAYS else f"{said}. To serve it, {self.fix}"


def from_extension(reason: str, detail: str, remedy: str) -> Gap:
    """As the extension tells it."""
    if remedy == "arch":
        return other_arch(reason)
    fixes = {"record": COVER, "build": _NOTES}
    return Gap(reason, fixes.get(remedy, _ALWAYS), detail, remedy == "call")


def other_arch(reason: str) -> Gap:
    """Nothing was built for the current device."""
    arch = _compat.device.device_arch()
    return Gap(reason, f"build again with `opforge build ... --arch {arch}`")


def undeclared(name: str) -> Gap:
    """A parameter is given a constant, and has no annotation that says so."""
    return Gap(
        f"{name} is a constant, but not annotated as tl.constexpr",
        f"annotate it ({name}: tl.constexpr), record it and build again",
    )
