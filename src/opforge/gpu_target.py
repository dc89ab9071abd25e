"""Tracing for a GPU that need not exist: `with opforge.target("sm_90"): ...`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from . import _compat
from .arch import CUDA, HIP, HOPPER, Arch
from .arch_names import parse_arch

_Gpu = _compat.driver.Gpu


def _amd(
    number: int, name: str = "AMD GPU", units: int = 64, memory: int = 16 << 30, l2: int = 4 << 20
) -> _Gpu:
    """HIP has one limit of shared memory, where CUDA has three."""
    arch = Arch(HIP, number)
    shared = arch.most_shared
    return _Gpu(
        arch, name, units, shared, shared, memory, l2, arch.warp_size, 2048,
        shared_memory_per_block=shared,
    )  # fmt: skip


# A common board of each architecture. Host code may ask for its properties; kernels do not.
_KNOWN = {
    gpu.arch: gpu
    for gpu in (
        _Gpu(Arch(CUDA, 75), "Tesla T4", 40, 65536, 65536, 15 << 30, 4 << 20, 32, 1024),
        _Gpu(Arch(CUDA, 80), "NVIDIA A100", 108, 166912, 167936, 80 << 30, 40 << 20, 32, 2048),
        _Gpu(Arch(CUDA, 86), "NVIDIA A10", 72, 101376, 102400, 24 << 30, 6 << 20),
        _Gpu(Arch(CUDA, 89), "NVIDIA L40S", 142, 101376, 102400, 48 << 30, 96 << 20),
        _Gpu(Arch(CUDA, 90), "NVIDIA H100", 132, 232448, 233472, 80 << 30, 50 << 20, 32, 2048),
        _Gpu(Arch(CUDA, 100), "NVIDIA B200", 148, 232448, 233472, 180 << 30, 126 << 20, 32, 2048),
        _Gpu(Arch(CUDA, 103), "NVIDIA B300", 148, 232448, 233472, 270 << 30, 126 << 20, 32, 2048),
        _Gpu(Arch(CUDA, 120), "NVIDIA RTX PRO 6000", 188, 101376, 102400, 96 << 30, 128 << 20),
        _amd(0x90A, "AMD Instinct MI250X", 110, 64 << 30, 8 << 20),
        _amd(0x942, "AMD Instinct MI300X", 304, 192 << 30, 4 << 20),
        _amd(0x950, "AMD Instinct MI355X", 256, 288 << 30, 4 << 20),
        _amd(0x1100, "AMD Radeon RX 7900 XTX", 48, 24 << 30, 6 << 20),
        _amd(0x1201, "AMD Radeon RX 9070 XT", 32, 16 << 30, 8 << 20),
    )
}
DEFAULT = _KNOWN[HOPPER]


def target(arch: str | int) -> AbstractContextManager[None]:
    """Trace for a GPU architecture, whether or not the machine has such a GPU.

        with opforge.target("sm_90"):
            torch.export.export(model, (x,)).run_decompositions()

    Inside, Triton's driver, `torch.cuda` and `torch.accelerator` answer this thread (current
    device, capability, properties) for that architecture. A compiled function is recompiled for
    each target. Launching needs a real GPU.
    """
    return _compat.driver.standing_in(gpu_of(arch), compiling=True)


def gpu_of(arch: str | int | Arch) -> _compat.driver.Gpu:
    """`"sm_90"` -> the GPU that stands for it."""
    found = parse_arch(arch)
    if found not in _KNOWN:
        return _amd(found.number) if found.is_amd else _Gpu(found)
    return _KNOWN[found]
