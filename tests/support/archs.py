"""Architectures for tests, without asking Triton."""

from opforge.arch import CUDA, HIP, Arch


def sm(*numbers):
    """`sm(80, 90)` -> sm_80 and sm_90."""
    return tuple(Arch(CUDA, number) for number in numbers)


SM_80, SM_90 = sm(80, 90)


def gfx(*names):
    """`gfx("90a", "942")` -> gfx90a and gfx942."""
    return tuple(Arch(HIP, int(name, 16)) for name in names)


(GFX942,) = gfx("942")
