"""Forward and backward of flash-linear-attention's gated linear attention."""

import torch
from fla.ops.gla import chunk_gla


def results(rows, device):
    def leaf(x):
        return x.bfloat16().requires_grad_()

    shape = (1, rows, 2, 64)
    q, k, v = (leaf(torch.randn(shape, device=device)) for _ in range(3))
    gate = leaf(torch.randn(shape, device=device).sigmoid().log())
    y, _ = chunk_gla(q, k, v, gate)
    y.backward(torch.randn_like(y))
    yield from (y, q.grad, k.grad, v.grad, gate.grad)
