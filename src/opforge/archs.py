"""GPU architectures by their usual names: `sm_90`, `sm90`, `90`, `sm_90a`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from . import _compat
from .errors import UnknownArch

# The first with clusters, tensor maps and programmatic dependent launch.
HOPPER = 90


def parse_arch(text: str | int) -> int:
    """`"sm_90"` -> 90, if this Triton can compile for it.

    From sm_90 on Triton compiles for the architecture-specific form by itself, so that "sm_90"
    and "sm_90a" mean the same.
    """
    name = str(text).strip().lower()
    if re.match(r"(hip|amdgpu|rocm)\b|gfx", name):
        raise UnknownArch(
            f"{text!r} is an AMD GPU; native libraries and targets are for NVIDIA GPUs only",
            fix=f"use opforge.package on the AMD GPU itself, or {_fix()}",
        )
    match = re.fullmatch(r"(?:cuda:)?(?:sm_?|compute_)?(\d{2,3})(a?)", name)
    if match is None:
        raise UnknownArch(f"{text!r} is not a GPU architecture", fix=_fix())
    arch = int(match[1])
    if match[2] and arch < 90:
        raise UnknownArch(f"{text!r}: sm_{arch} has no such variant", fix=f"use sm_{arch}")
    return check_arch(arch)


def parse_archs(given: str | int | Iterable[str | int]) -> tuple[int, ...]:
    """One or several, each once, lowest first."""
    several = [given] if isinstance(given, (str, int)) else given
    return tuple(sorted({parse_arch(each) for each in several}))


def check_arch(arch: int) -> int:
    """The same number, if this Triton can compile for it."""
    if arch not in _compat.compiling.known_archs():
        raise UnknownArch(
            f"Triton {_compat.compiling.version()} cannot compile for sm_{arch}", fix=_fix()
        )
    return arch


def show_arch(arch: int) -> str:
    return f"sm_{arch}"


def _fix() -> str:
    return f"name one of {', '.join(map(show_arch, _compat.compiling.known_archs()))}"
