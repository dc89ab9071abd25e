"""Arguments for the hand-made programs, and what to look at in a launch."""

import torch

from support.native import hand_made

VALUES = {
    "fp16": 1.0 / 3, "bf16": 1.0 / 3, "fp32": 0.1, "fp64": 0.1, "i8": -128, "i16": -32768,
    "i32": -5, "i64": 2**40 + 1, "u8": 200, "u16": 65535, "u32": 2**32 - 1, "u64": 2**64 - 1,
    "i1": 1,
}  # fmt: skip
SPECIAL = ("shared", "cluster", "cluster16", "cooperative", "pdl", "scratch", "profile", "huge")
SPECIAL = {label: i for i, label in enumerate((*SPECIAL, "late"))}


def everything(rows=3, *, bias=True, mode=0, **changed):
    x = torch.randn(rows, 8)
    given = VALUES | {name.removeprefix("s_"): value for name, value in changed.items()}
    scalars = [given[t] for t in hand_made.SCALARS]
    return [x, torch.randn(8) if bias else None, torch.zeros(rows), *scalars, mode]


def fresh(shape, dtype=torch.float32, shift=0):
    """Memory `shift` elements past a multiple of 16 bytes."""
    size = torch.Size(shape).numel()
    memory = torch.zeros(size + 32, dtype=dtype)
    start = aligned_offset(memory) + shift
    return memory[start : start + size].view(shape)


def aligned_offset(memory):
    return (-memory.data_ptr() % 16) // memory.element_size()


def name_of(launched):
    """The key of the kernel, which a hand-made image has behind its header."""
    return launched.image[64:].split()[0].decode()
