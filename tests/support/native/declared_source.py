"""The source of a declared operator, for what reads or builds files."""

# SPACE is the namespace, and the name of the library.
SOURCE = """
import opforge
import torch
import triton
import triton.language as tl
from opforge import native


@triton.jit
def twice_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, 2 * tl.load(x_ptr + offsets, mask=mask), mask=mask)


@opforge.op("SPACE::twice")
def twice(x: torch.Tensor, mode: str = "fast") -> torch.Tensor:
    '''Two times x.'''
    out, n = torch.empty_like(x), x.numel()
    if n > 100:
        twice_kernel[(triton.cdiv(n, 128),)](x, out, n, BLOCK=128)
    else:
        twice_kernel[(triton.cdiv(n, 32),)](x, out, n, BLOCK=32)
    return out


native.declare(
    twice,
    x=native.tensor("n", dtype="fp32"),
    mode=native.choice("fast", "exact"),
    dims={"n": (0, 1000)},
)
"""


def write_source(folder, name, text=SOURCE):
    """`name.py`, whose operators have the namespace `name`."""
    path = folder / f"{name}.py"
    path.write_text(text.replace("SPACE", name))
    return path
