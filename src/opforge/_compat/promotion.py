"""torch's rules for the dtypes of pointwise functions, and for numbers among their operands."""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes


def dtypes(operands: tuple[Any, ...], kind: str) -> tuple[torch.dtype, torch.dtype]:
    """The dtype to compute in, and the result's: `(float32, float16)` for `x.half() * 2`."""
    return elementwise_dtypes(*operands, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND[kind])


def _saturates() -> bool:
    try:
        torch.zeros(1, dtype=torch.int8).clamp(max=128)
    except RuntimeError:
        return False
    return True


# Whether `clamp` takes ends beyond an integer dtype that exclude nothing, as it does since 2.15.
SATURATES = _saturates()
