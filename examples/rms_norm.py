"""RMS norm with its options in a frozen dataclass, which the schema carries field by field."""

import dataclasses
import enum

import torch
from torch import Tensor

import opforge


class Rounding(enum.Enum):
    """The precision in which the mean of squares is computed."""

    INPUT = "input"
    FLOAT32 = "float32"


@dataclasses.dataclass(frozen=True)
class NormConfig:
    weight: Tensor
    eps: float = 1e-6
    rounding: Rounding = Rounding.FLOAT32


def inverse_rms(x: Tensor, cfg: NormConfig) -> Tensor:
    exact = x.float() if cfg.rounding is Rounding.FLOAT32 else x
    return torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + cfg.eps).to(x.dtype)


def save(ctx, inputs, output):
    x, cfg = inputs
    ctx.save_for_backward(x, cfg.weight)
    ctx.cfg = dataclasses.replace(cfg, weight=None)


def backward(ctx, grad):
    x, weight = ctx.saved_tensors
    scale = inverse_rms(x, ctx.cfg)
    normed = x * scale
    inner = grad * weight
    grad_x = scale * (inner - normed * (inner * normed).mean(-1, keepdim=True))
    grad_weight = (grad * normed).sum(tuple(range(x.dim() - 1)))
    return grad_x, {"weight": grad_weight}


@opforge.op("examples::rms_norm", backward=backward, setup_context=save)
def rms_norm(x: Tensor, cfg: NormConfig) -> Tensor:
    """x / rms(x) * weight over the last dimension."""
    return x * inverse_rms(x, cfg) * cfg.weight
