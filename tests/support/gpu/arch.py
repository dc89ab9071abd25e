"""The architecture of the GPU that tests run on: `"sm_90"`, `"gfx942"`."""

import triton

from opforge.arch import Arch


def current_arch():
    return Arch.of_target(triton.runtime.driver.active.get_current_target())


def arch_name():
    return str(current_arch())
