"""Forward and backward of four of liger_kernel's functions."""

import torch
from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
from liger_kernel.ops.rms_norm import LigerRMSNormFunction
from liger_kernel.ops.rope import LigerRopeFunction
from liger_kernel.ops.swiglu import LigerSiLUMulFunction


def results(rows, device):
    def leaf(*shape):
        return torch.randn(*shape, device=device).requires_grad_()

    x, weight = leaf(rows, 256), leaf(256)
    y = LigerRMSNormFunction.apply(x, weight, 1e-6, 0.0, "llama", False)
    y.backward(torch.randn_like(y))
    yield from (y, x.grad, weight.grad)

    gate, up = leaf(rows, 256), leaf(rows, 256)
    y = LigerSiLUMulFunction.apply(gate, up)
    y.backward(torch.randn_like(y))
    yield from (y, gate.grad, up.grad)

    q, k = leaf(1, 4, rows, 64), leaf(1, 2, rows, 64)
    angles = torch.randn(1, rows, 64, device=device)
    y, z = LigerRopeFunction.apply(q * 1, k * 1, angles.cos(), angles.sin())
    torch.autograd.backward([y, z], [torch.randn_like(y), torch.randn_like(z)])
    yield from (y, z, q.grad, k.grad)

    logits = leaf(rows, 1000)
    target = torch.randint(0, 1000, (rows,), device=device)
    # It writes the gradient into its input.
    loss, *_ = LigerCrossEntropyFunction.apply(logits * 1, target, None)
    loss.backward()
    yield from (loss, logits.grad)
