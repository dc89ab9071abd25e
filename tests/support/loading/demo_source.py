"""The source of two of the demo library's operators: what they compute, without kernels."""

import enum

import torch
from torch import Tensor


def plus(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def add(x: Tensor, y: Tensor) -> Tensor:
    return plus(x, y)


def add_double(x: Tensor, y: Tensor) -> Tensor:
    return x + y + 0


def add_scaled(x: Tensor, y: Tensor, factor: float = 1.0) -> Tensor:
    return x + factor * y


def save(ctx, inputs, output):
    ctx.scale = 1.0


def add_backward(ctx, grad):
    return grad * ctx.scale, grad * ctx.scale


class What(enum.Enum):
    PDL = "pdl"
    LATE = "late"


def special(x: Tensor, what: What) -> None:
    # .data keeps the body's own arithmetic from raising the version.
    x.data.add_(what is What.LATE)


def pick(x: Tensor) -> Tensor:
    return torch.empty_like(x)
