"""Ops that multiply matrices with torch, as a user's module has them."""

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


@opforge.op("product_ops::inner", mode="custom_op")
def inner(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.bmm(x, w)


@opforge.op("product_ops::all_products", mode="custom_op")
def all_products(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Every product that has a kernel, and one in a nested op; right where nothing is wrong."""
    expected = (x.unsqueeze(-1) * w.unsqueeze(1)).sum(2)
    stacked = torch.bmm(x, w)
    wrong = (stacked - expected).abs().amax()
    wrong += (inner(x[:, :2], w) - expected[:, :2]).abs().amax()
    added = torch.baddbmm(w[:, :1], x, w, alpha=2.0, beta=0.5)
    wrong += (added - (2 * expected + w[:, :1] / 2)).abs().amax()
    for found in (
        x[0] @ w[0],
        torch.mm(x[0], w[0]),
        functional.linear(x[0], w[0].t().contiguous()),
    ):
        wrong += (found - expected[0]).abs().amax()
    rows = x @ w[0]
    wrong += (rows[0] - expected[0]).abs().amax()
    added = torch.addmm(w[0, 0], x[0], w[0], alpha=0.5)
    wrong += (added - (expected[0] / 2 + w[0, 0])).abs().amax()
    if x.device.type == "cpu":
        assert wrong.item() < 1e-4, wrong
    return stacked


native.declare(
    all_products,
    x=native.tensor("b m k", dtype="fp32"),
    w=native.tensor("b k n", dtype="fp32"),
)
