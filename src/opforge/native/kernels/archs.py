"""GPU architectures by their usual names: `sm_90`, `90`, `sm_90a`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..._compat import compiling
from ...errors import UnknownArch


def parse_arch(text: str) -> int:
    """`"sm_90"` -> 90, if this Triton can compile for it.

    From sm_90 on Triton compiles for the architecture-specific form by itself, so that "sm_90"
    and "sm_90a" mean the same.
    """
    name = text.strip().lower()
    if re.match(r"(hip|amdgpu|rocm)\b|gfx", name):
        raise UnknownArch(
            f"{text!r}: native libraries are built for NVIDIA GPUs only",
            fix="use opforge.package for AMD GPUs, or --arch sm_90",
        )
    match = re.fullmatch(r"(?:cuda:)?(?:sm_?|compute_)?(\d{2,3})(a?)", name)
    if match is None:
        raise UnknownArch(f"{text!r} is not a GPU architecture", fix=_fix())
    arch = int(match[1])
    if match[2] and arch < 90:
        raise UnknownArch(f"{text!r}: sm_{arch} has no such variant", fix=f"use sm_{arch}")
    return check_arch(arch)


def parse_archs(texts: Iterable[str]) -> tuple[int, ...]:
    """Several, each once, lowest first."""
    return tuple(sorted({parse_arch(text) for text in texts}))


def check_arch(arch: int) -> int:
    """The same number, if this Triton can compile for it."""
    if arch not in compiling.known_archs():
        raise UnknownArch(f"Triton {compiling.version()} cannot compile for sm_{arch}", fix=_fix())
    return arch


def show_arch(arch: int) -> str:
    return f"sm_{arch}"


def _fix() -> str:
    return f"name one of {', '.join(map(show_arch, compiling.known_archs()))}"
