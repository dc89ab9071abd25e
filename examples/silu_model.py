"""Packages a model with a Triton kernel in four ways: registered or not, strict or not.

The study is Lei Mao's: two linear layers around a SiLU in bfloat16, for batches of 1 to 1024.
Without a GPU, the models are only exported.
"""

import sys
import tempfile
from pathlib import Path

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

import opforge
from opforge.errors import NeedsGpu


@triton.jit
def silu_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, x / (1 + tl.exp(-x)), mask=mask)


def bare_silu(x: Tensor) -> Tensor:
    out, n = torch.empty_like(x), x.numel()
    silu_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n, BLOCK=1024)
    return out


silu = opforge.op(bare_silu, name="examples::model_silu")


class Model(nn.Module):
    def __init__(self, activation, width=256):
        super().__init__()
        self.up = nn.Linear(width, 4 * width, dtype=torch.bfloat16)
        self.down = nn.Linear(4 * width, width, dtype=torch.bfloat16)
        self.activation = activation

    def forward(self, x):
        return self.down(self.activation(self.up(x)))


def cell(activation, path, *, strict):
    """The outcome of one of the four ways: a package, or the error that says why not."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = Model(activation).to(device).eval()
    x = torch.randn(8, 256, dtype=torch.bfloat16, device=device)
    dynamic = {"x": {0: ("batch", 1, 1024)}}
    try:
        return opforge.package(model, (x,), path, dynamic=dynamic, strict=strict)
    except opforge.OpforgeError as error:
        return error


def in_a_word(outcome):
    if isinstance(outcome, opforge.Package):
        return "packaged"
    return "exported" if isinstance(outcome, NeedsGpu) else type(outcome).__name__


def study(folder: Path):
    """All four cells, by registered or not, and strict or not."""
    outcomes = {}
    for name, activation in (("registered", silu), ("bare launch", bare_silu)):
        for strict in (True, False):
            path = folder / f"{name.split()[0]}_{'strict' if strict else 'non_strict'}.pt2"
            outcomes[name, strict] = cell(activation, path, strict=strict)
            print(f"{name}, strict={strict}\n{outcomes[name, strict]}\n", flush=True)
    return outcomes


def main(folder: Path) -> None:
    if not torch.cuda.is_available():
        print("no GPU: the models are exported, but packaging their kernels needs a GPU\n")
    outcomes = study(folder)
    print(f"{'':<14}{'strict=True':<16}strict=False")
    for name in ("registered", "bare launch"):
        strict, non_strict = (in_a_word(outcomes[name, way]) for way in (True, False))
        print(f"{name:<14}{strict:<16}{non_strict}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
