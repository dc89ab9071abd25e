# ruff: noqa: ANN001, ANN201  # Triton reads annotations
"""Kernels that benchmarks/serve.py launches, with 4 arguments, with 19, and autotuned."""

import triton
import triton.language as tl


@triton.jit
def four(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    total = tl.load(x_ptr + at, mask=mask) + tl.load(y_ptr + at, mask=mask)
    tl.store(out_ptr + at, total, mask=mask)


@triton.jit
def nineteen(
    a, b, c, d, e, out, n, s0, s1, s2, s3, s4, s5, s6, s7, f0, f1, f2, f3,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    total = tl.load(a + at * s0, mask=mask) * f0 + tl.load(b + at * s1, mask=mask) * f1
    total += tl.load(c + at * s2, mask=mask) * f2 + tl.load(d + at * s3, mask=mask) * f3
    total += tl.load(e + at * s4, mask=mask) + s5 + s6
    tl.store(out + at * s7, total, mask=mask)


@triton.autotune([triton.Config({"BLOCK": b}) for b in (256, 1024)], key=["n"])
@triton.jit
def tuned(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    total = tl.load(x_ptr + at, mask=mask) + tl.load(y_ptr + at, mask=mask)
    tl.store(out_ptr + at, total, mask=mask)


def calls(x, y, out):
    """Launches by name, all of one size."""
    n = x.numel()
    numbers = (n, 1, 1, 1, 1, 1, 3, 5, 1, 0.5, 0.25, 0.125, 2.0)
    grid = (triton.cdiv(n, 1024),)
    return {
        "4 arguments": lambda: four[grid](x, y, out, n, BLOCK=1024),
        "4 arguments, callable grid": lambda: four[lambda meta: (n // meta["BLOCK"],)](
            x, y, out, n, BLOCK=1024
        ),
        "19 arguments": lambda: nineteen[grid](x, y, x, y, x, out, *numbers, BLOCK=1024),
        "autotuned": lambda: tuned[lambda meta: (n // meta["BLOCK"],)](x, y, out, n),
    }
