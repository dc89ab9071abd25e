"""GPU architectures by their usual names: `sm_90`, `sm90`, `90`, `sm_90a`, `gfx942`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from . import _compat
from .arch import CUDA, FIRST_ARCH_SPECIFIC, Arch
from .errors import BadOption

_INTEL = re.compile(r"xpu|intel|bmg|pvc|dg2|acm|lnl|ptl")
# As torch has it, too, with what a device has switched on: images run with and without.
_AMD = re.compile(r"(?:(?:hip|rocm|amdgpu):)?(gfx[1-9][0-9a-f]{2,3})(?::(?:sramecc|xnack)[+-])*")


def parse_arch(text: str | int | Arch) -> Arch:
    """`"sm_90"` -> the architecture, if this Triton can compile for it.

    From sm_90 on Triton compiles for the architecture-specific form by itself, so that "sm_90"
    and "sm_90a" mean the same.
    """
    name = str(text).strip().lower()
    if _INTEL.match(name):
        raise BadOption(
            f"{text!r} is an Intel GPU, and Triton has no compiler for these: opforge takes "
            "NVIDIA's and AMD's",
            fix=_fix(),
        )
    if amd := _AMD.fullmatch(name):
        return check_arch(Arch.named(amd[1]))
    match = re.fullmatch(r"(?:cuda:)?(?:sm_?|compute_)?(\d{2,3})(a?)", name)
    if match is None:
        raise BadOption(f"{text!r} is not a GPU architecture", fix=_fix())
    arch = Arch(CUDA, int(match[1]))
    if match[2] and arch.number < FIRST_ARCH_SPECIFIC:
        raise BadOption(f"{text!r}: {arch} has no 'a' form", fix=f"use {arch}")
    return check_arch(arch)


def parse_archs(given: str | int | Iterable[str | int | Arch]) -> tuple[Arch, ...]:
    """One or several, each once, lowest first."""
    several = [given] if isinstance(given, (str, int)) else [*given]
    if not several:
        raise BadOption("no GPU architecture was given", fix=_fix())
    return tuple(sorted({parse_arch(each) for each in several}))


def check_arch(arch: Arch) -> Arch:
    """The same, if this Triton can compile for it."""
    if arch not in _compat.compiling.known_archs():
        raise BadOption(
            f"Triton {_compat.compiling.version()} cannot compile for {arch}", fix=_fix()
        )
    return arch


def _fix() -> str:
    return f"name one of {', '.join(map(str, _compat.compiling.known_archs()))}"
