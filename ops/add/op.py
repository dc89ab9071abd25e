"""x + y, element by element, broadcast."""

import torch
from torch import Tensor

import opforge
from opforge import native

from ..elementwise import DTYPES, RANKS, combine


@opforge.op("ops::add")
def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y of tensors with the same dtype, broadcast as in torch; integers wrap around."""
    return combine(x, y, "add")


native.declare(
    add,
    x=native.tensor("*s", dtype="T", layout="strided", ranks=RANKS, broadcast=True),
    y=native.tensor("*s", dtype="T", layout="strided", broadcast=True),
    returns=native.tensor("*s", dtype="T", layout="strided"),
    T=DTYPES,
)


def add_reference(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def add_inputs():
    return (torch.randn(5, 33), torch.randn(33)), {}
