"""Operators of rows that have a gradient: arguments, and what is expected."""

import importlib
import math

import torch

from support.ops.operators import DEVICE, LIMITS, ON_GPU, laid_out

NAMES = ("silu", "silu_and_mul", "gelu_and_mul", "softmax", "rms_norm", "layer_norm")
OPS = (*NAMES, *(f"{name}_backward" for name in NAMES))
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# What the library contains without a GPU.
BUILT_DTYPES = DTYPES if ON_GPU else (torch.float32,)


def random(shape, dtype, layout="compact", seed=0):
    if math.prod(shape) < 1 << 20:
        return laid_out(layout, shape, dtype, seed)
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=DEVICE).to(dtype)


def arguments(name, shape, dtype=torch.float32, layout="compact"):
    """Arguments of an operator for a result, or a gradient, of the given shape."""
    base = name.removesuffix("_backward")
    wide = (*shape[:-1], 2 * shape[-1]) if base.endswith("_and_mul") else shape
    x = random(wide, dtype, layout)
    if name == "softmax_backward":
        x = torch.softmax(x.double(), -1).to(dtype)
    more = ("none",) if base == "gelu_and_mul" else ()
    if base.endswith("_norm"):
        bias = [random(shape[-1:], dtype, seed=3)] if name == "layer_norm" else []
        more = (random(shape[-1:], dtype, seed=2), *bias, 1e-5)
    if name == base:
        return (x, *more)
    return (random(shape, dtype, layout, 1), x, *more)


def reference(name):
    base = name.removesuffix("_backward")
    return getattr(importlib.import_module(f"ops.{base}.op"), f"{name}_reference")


def check(name, run, given):
    """A call returns what the reference returns in double precision."""
    found = run(*given)
    doubles = [g.double() if isinstance(g, torch.Tensor) else g for g in given]
    expected = reference(name)(*doubles)
    if isinstance(expected, torch.Tensor):
        found, expected = (found,), (expected,)
    for one, wanted in zip(found, expected, strict=True):
        assert one.is_contiguous()
        assert one.dtype == given[0].dtype
        assert one.shape == wanted.shape
        limit, kind = LIMITS[one.dtype], torch.finfo(one.dtype)
        close = limit * max(size(wanted), size(terms(name, doubles)))
        # Below the smallest normal number, half-precision numbers are this far apart.
        close += kind.smallest_normal * kind.eps
        torch.testing.assert_close(one.double(), wanted, rtol=limit, atol=close)


def terms(name, given):
    """The terms whose differences the results are, if any; their errors count."""
    if name == "softmax_backward":
        return given[0] * given[1]
    if name == "rms_norm_backward":
        grad, x, weight, eps = given
        return grad * weight * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    if name.startswith("layer_norm"):
        first = int(name.endswith("_backward"))
        x, weight, eps = given[first], given[first + 1], given[-1]
        apart = x - x.mean(-1, keepdim=True)
        scale = weight * torch.rsqrt(apart.square().mean(-1, keepdim=True) + eps)
        return (x if name == "layer_norm" else given[0]) * scale
    return torch.zeros(())


def size(values):
    return values.square().mean().sqrt().item() if values.numel() else 0.0
