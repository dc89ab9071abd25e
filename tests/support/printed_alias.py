"""What kernels of printed_kernels.py use from another module, under a name of their own."""

import triton
import triton.language as tl


@triton.jit
def row(axis: tl.constexpr):
    return tl.program_id(axis).to(tl.int64)


# Something else than in printed_kernels.py.
HALF = tl.constexpr(-0.5)


@triton.jit
def turned(value):
    return value * HALF
