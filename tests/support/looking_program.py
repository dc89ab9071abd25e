"""A program that looks at what its launches return: `python looking_program.py`."""

import sys

import torch
from served_program import add_kernel

SIZE = 4096


def told(compiled):
    said = compiled.n_regs, compiled.n_spills, compiled.metadata.shared, compiled.metadata.num_warps
    return f"{compiled.name} {said} {sorted(compiled.asm)}\n"


if __name__ == "__main__":
    x = torch.arange(SIZE, device="cuda", dtype=torch.float32)
    out = torch.empty_like(x)
    returned = add_kernel[(4,)](x, x, out, SIZE, BLOCK=1024)
    sys.stdout.write(told(returned))
    warm = add_kernel.warmup(x, x, out, SIZE, BLOCK=1024, grid=(4,))
    warm._init_handles()
    sys.stdout.write(told(warm))
    warm[(4, 1, 1)](x, out, out, SIZE, 1024)
    sys.stdout.write(f"{out.sum().item()}\n")
