"""A program of compiled graphs that nobody has prepared: `python compiled_program.py SIZE ...`.

Each line that it prints is a size, a name and a hash of a result. Every result is compared with
that of eager PyTorch first.
"""

import hashlib
import os
import sys

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it
import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": b}, num_warps=w) for b in (128, 512) for w in (2, 4)]


@triton.jit
def scaled(x, factor):
    return x * factor


@triton.jit
def scale_kernel(x_ptr, out_ptr, factor, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out_ptr + at, scaled(tl.load(x_ptr + at, mask=mask), factor), mask=mask)


@triton.autotune(CONFIGS, ["n"])
@triton.jit
def shift_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=mask) + 1, mask=mask)


def scale(x):
    out = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, 0.1, x.numel(), BLOCK=1024)
    return out


def launched(x):
    """Kernels of user code, between operators."""
    out = scale(F.silu(x))
    shifted, n = torch.empty_like(x), x.numel()
    shift_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](out, shifted, n)
    return shifted.cos()


def launched_eager(x):
    return (F.silu(x) * 0.1 + 1).cos()


def fused(x):
    """Kernels of Inductor's own: a pointwise one, a persistent reduction, a reduction."""
    x = x.view(-1, 64)
    return torch.softmax(torch.tanh(x) * 2, -1), x.exp().sum(), x.amax(0)


def step(x):
    """What a training step goes back through."""
    x = x.view(-1, 64)
    return (F.layer_norm(F.gelu(x), (64,)) * x).square().mean()


def gradient(x, step):
    x = x.detach().requires_grad_()
    step(x).backward()
    return x.grad


def fixed(x):
    """For one size, with CUDA graphs."""
    return (x.sin() + 1).sum(-1)


def results(size, functions):
    torch.manual_seed(size)
    x = torch.randn(size, device="cuda")
    yield "eager", scale(x), x * 0.1
    yield "launched", functions["launched"](x), launched_eager(x)
    for i, (got, wanted) in enumerate(zip(functions["fused"](x), fused(x), strict=True)):
        yield f"fused {i}", got, wanted
    yield "backward", gradient(x, functions["step"]), gradient(x, step)
    rows = torch.randn(33, 1000, device="cuda")
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        yield "fixed", functions["fixed"](rows).clone(), fixed(rows)


def main(sizes):
    functions = {
        f.__name__: torch.compile(f, dynamic=True, fullgraph=True) for f in (launched, fused, step)
    }
    functions["fixed"] = torch.compile(fixed, mode="reduce-overhead", fullgraph=True)
    for size in sizes:
        for name, got, wanted in results(size, functions):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
            digest = hashlib.sha256(got.detach().cpu().numpy().tobytes()).hexdigest()
            sys.stdout.write(f"{size} {name} {digest}\n")


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
    if os.environ.get("OPFORGE_SERVE"):
        import opforge

        sys.stdout.write(f"{opforge.served()}\n")
