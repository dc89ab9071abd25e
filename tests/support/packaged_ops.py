"""Ops and models that the tests package; the fresh process imports this file."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

import opforge


@triton.jit
def double_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * 2, mask=mask)


@opforge.op("packaged_ops::double")
def double(x: Tensor) -> Tensor:
    """Transparent, and with a branch for CPU tensors, so that it can be packaged without a GPU."""
    if not x.is_cuda:
        return x * 2
    out = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
    return out


@dataclass(frozen=True)
class Scale:
    weight: Tensor
    eps: float = 1e-3


@opforge.op("packaged_ops::scale", mode="custom_op")
def scale(x: Tensor, cfg: Scale) -> Tensor:
    return x * cfg.weight + cfg.eps


@torch.library.custom_op("packaged_ops::shift", mutates_args=())
def shift(x: Tensor) -> Tensor:
    return x + 1


@shift.register_fake
def _(x):
    return torch.empty_like(x)


@opforge.op("packaged_ops::step", mutates_args=["state.weight"])
def step(state: Scale, grad: Tensor) -> None:
    state.weight.sub_(grad * state.eps)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 16))

    def forward(self, x):
        return scale(double(x), Scale(self.weight, eps=0.25))


class Model(nn.Module):
    """Ops inside another module, opaque and transparent, and a buffer that every call changes."""

    def __init__(self):
        super().__init__()
        self.block = Block()
        self.linear = nn.Linear(16, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, *, bias):
        self.calls.add_(1)
        return {"y": shift(self.linear(self.block(x))) + bias, "calls": self.calls * x.shape[0]}


@opforge.op("packaged_ops::launch")
def launch(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
    return out
