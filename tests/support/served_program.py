"""A program of kernels that nobody has prepared: `python served_program.py SIZE ... > results`."""

import hashlib
import sys

import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    total = tl.load(x_ptr + at, mask=mask) + tl.load(y_ptr + at, mask=mask)
    tl.store(out_ptr + at, total, mask=mask)


CONFIGS = [triton.Config({"BLOCK": b}, num_warps=w) for b in (128, 512) for w in (2, 4)]


@triton.autotune(CONFIGS, ["n"])
@triton.heuristics({"EVEN": lambda given: given["n"] % given["BLOCK"] == 0})
@triton.jit
def scale_kernel(x_ptr, out_ptr, factor, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):  # noqa: PLR0917
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    if EVEN:
        tl.store(out_ptr + at, tl.load(x_ptr + at) * factor)
    else:
        tl.store(out_ptr + at, tl.load(x_ptr + at, mask=mask) * factor, mask=mask)


@triton.jit
def row_kernel(x_ptr, out_ptr, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + at, mask=at < n, other=-float("inf"))
    x = tl.exp(x - tl.max(x, 0))
    tl.store(out_ptr + row * stride + at, x / tl.sum(x, 0), mask=at < n)


def results(size):
    torch.manual_seed(size)
    x, y = torch.randn(size, device="cuda"), torch.randn(size, device="cuda")
    out = torch.empty_like(x)
    add_kernel[lambda meta: (triton.cdiv(size, meta["BLOCK"]),)](x, y, out, size, BLOCK=1024)
    yield out
    scaled = torch.empty_like(x)
    scale_kernel[lambda meta: (triton.cdiv(size, meta["BLOCK"]),)](x, scaled, 1.5, size)
    yield scaled
    rows = torch.randn(7, 100 + size % 20, device="cuda")
    soft = torch.empty_like(rows)
    row_kernel[(7,)](rows, soft, rows.stride(0), rows.shape[1], BLOCK=128)
    yield soft


if __name__ == "__main__":
    for word in sys.argv[1:]:
        for result in results(int(word)):
            content = result.cpu().numpy().tobytes()
            sys.stdout.write(f"{word} {hashlib.sha256(content).hexdigest()}\n")
