"""Functions with a dataclass, an Enum and a NamedTuple; `config_ops` makes ops of them."""

import enum
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Act(enum.Enum):
    """Of which the ops are not declared for all, nor in this order."""

    SQUARE = enum.auto()
    TANH = enum.auto()
    ABS = enum.auto()


@dataclass(frozen=True)
class Config:
    scale: float
    bias: Tensor | None = None
    act: Act = Act.TANH


class Window(NamedTuple):
    low: float
    high: float


class Shaped(NamedTuple):
    value: Tensor
    slope: Tensor


def activated(x: Tensor, act: Act = Act.ABS) -> Tensor:
    return torch.tanh(x) if act is Act.TANH else x.abs()


def activated_slope(x: Tensor, act: Act) -> Tensor:
    y = torch.tanh(x)
    return 1 - y * y if act is Act.TANH else torch.sign(x)


def shaped(x: Tensor, cfg: Config, window: Window | None) -> Shaped:
    """Of a clamped x, and how steep that is there."""
    y = x * cfg.scale
    if cfg.bias is not None:
        y = y + cfg.bias
    inside = torch.ones_like(y)
    if window is not None:
        inside = ((y >= window.low) & (y <= window.high)).to(y.dtype)
        y = y.clamp(window.low, window.high)
    return Shaped(activated(y, cfg.act), activated_slope(y, cfg.act) * inside)


def limited(x: Tensor, window: Window, cfg: Config) -> Tensor:
    return shaped(x, cfg, window).value
