"""The GPUs of this machine."""

from __future__ import annotations

import torch

from ..arch import CUDA, Arch


def device_arch(index: int | None = None) -> Arch:
    """The architecture of a device, by default of the current one; starts CUDA."""
    if torch.version.hip is not None:
        # With what is switched on and off in it: "gfx942:sramecc+:xnack-".
        name = torch.cuda.get_device_properties(index).gcnArchName
        return Arch.named(name.partition(":")[0])
    major, minor = torch.cuda.get_device_capability(index)
    return Arch(CUDA, major * 10 + minor)
