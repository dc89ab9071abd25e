"""SiLU: one function and its backward, and PyTorch has an operator."""

import torch
from torch import Tensor

import opforge


def save(ctx, inputs, output):
    (x,) = inputs
    ctx.save_for_backward(x)


def backward(ctx, grad):
    (x,) = ctx.saved_tensors
    gate = torch.sigmoid(x)
    return grad * gate * (1 + x * (1 - gate))


@opforge.op("examples::silu", backward=backward, setup_context=save)
def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), element by element."""
    return x * torch.sigmoid(x)
