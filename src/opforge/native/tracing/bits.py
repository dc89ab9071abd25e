"""The bits of a constant in memory, for the driver's memset."""

from __future__ import annotations

import torch


def pattern(value: float, dtype: torch.dtype) -> int:
    """`pattern(1.0, torch.float16)` -> 0x3C00."""
    unsigned = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    bits = int(torch.tensor(value, dtype=dtype).view(unsigned).item())
    return bits % (1 << 8 * dtype.itemsize)
