"""Tracing for a GPU that need not exist: `with opforge.target("sm_90"): ...`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from . import _compat
from .archs import parse_arch

_Gpu = _compat.driver.Gpu

# A common board of each architecture. Host code may ask for its properties; kernels do not.
_KNOWN = {
    gpu.arch: gpu
    for gpu in (
        _Gpu(75, "Tesla T4", 40, 65536, 65536, 15 << 30, 4 << 20, 32, 1024),
        _Gpu(80, "NVIDIA A100", 108, 166912, 167936, 80 << 30, 40 << 20, 32, 2048),
        _Gpu(86, "NVIDIA A10", 72, 101376, 102400, 24 << 30, 6 << 20),
        _Gpu(89, "NVIDIA L40S", 142, 101376, 102400, 48 << 30, 96 << 20),
        _Gpu(90, "NVIDIA H100", 132, 232448, 233472, 80 << 30, 50 << 20, 32, 2048),
        _Gpu(100, "NVIDIA B200", 148, 232448, 233472, 180 << 30, 126 << 20, 32, 2048),
        _Gpu(103, "NVIDIA B300", 148, 232448, 233472, 270 << 30, 126 << 20, 32, 2048),
        _Gpu(120, "NVIDIA RTX PRO 6000", 188, 101376, 102400, 96 << 30, 128 << 20),
    )
}
DEFAULT = _KNOWN[90]


def target(arch: str | int) -> AbstractContextManager[None]:
    """Trace for a GPU architecture, whether or not the machine has such a GPU.

        with opforge.target("sm_90"):
            torch.export.export(model, (x,)).run_decompositions()

    Inside, Triton's driver, `torch.cuda` and `torch.accelerator` answer this thread (current
    device, capability, properties) for that architecture. A compiled function is compiled again
    for another one. Launching needs a real GPU.
    """
    return _compat.driver.standing_in(gpu_of(arch), compiling=True)


def gpu_of(arch: str | int) -> _compat.driver.Gpu:
    """`"sm_90"` -> the GPU that stands for it."""
    number = parse_arch(arch)
    return _KNOWN.get(number, _Gpu(number))
