"""Arguments that need gradients, and what is said where there are none."""

import dataclasses
import warnings
from typing import NamedTuple

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Weights:
    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    count: int = 1


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


def doubles(*shape):
    """For gradcheck."""
    generator = torch.Generator().manual_seed(7)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


def leaf(*shape):
    return torch.ones(*shape).requires_grad_()


def refusal(function):
    """The error of going backward, or the warnings where torch only warns."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            function()
        except RuntimeError as error:  # Dynamo wraps exceptions in RuntimeErrors, too
            return str(error)
    return "\n".join(str(w.message) for w in caught)
