"""An op that multiplies matrices with torch, as a user's module has it."""

import torch
from torch.nn import functional

import opforge
from opforge import native


@opforge.op("product_ops::gated", mode="custom_op")
def gated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return functional.silu(functional.linear(x, w))


native.declare(
    gated,
    x=native.tensor("m k", dtype="T"),
    w=native.tensor("n k", dtype="T"),
    T=("fp16", "fp32"),
)
