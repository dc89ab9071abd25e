"""Arithmetic in bfloat16 in Triton's interpreter, against torch; run with TRITON_INTERPRET=1."""

import torch
import triton
import triton.language as tl

import opforge.op  # noqa: F401  # mends the interpreter


@triton.jit
def arithmetic(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    found = -(x + y) * x - tl.abs(y) * (x * x + 1.5)
    found = tl.where(x > y, tl.maximum(found, y), tl.fma(x, y, found))
    tl.store(out_ptr + at, found)


@triton.jit
def sums(x_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    # Versions differ in whether they give fp32.
    found = tl.cumsum(x, 0).to(tl.bfloat16) + tl.max(x, axis=0).to(tl.bfloat16)
    found += tl.sum(x).to(tl.bfloat16)
    tl.store(out_ptr + at, found + tl.full((N,), 1.3, tl.bfloat16))


@triton.jit
def rows(x_ptr, out_ptr, N: tl.constexpr):
    """A scalar for each program."""
    row = tl.program_id(0)
    total = tl.sum(tl.load(x_ptr + row * N + tl.arange(0, N)), 0)
    if total > 0:
        tl.store(out_ptr + row, total / 2)
    else:
        tl.store(out_ptr + row, total)


@triton.jit
def product(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out_ptr + at, tl.dot(tl.load(x_ptr + at), tl.load(y_ptr + at)))


@triton.jit
def casts(x_ptr, n_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    number = tl.load(n_ptr + at).to(tl.bfloat16)
    found = (x.to(tl.float32) * 1.01).to(tl.bfloat16) + x.to(tl.int32).to(tl.bfloat16)
    tl.store(out_ptr + at, found + number)


@triton.jit
def masked(x_ptr, at_ptr, n, out_ptr, N: tl.constexpr):
    """The scalar comparison becomes part of a mask."""
    at = tl.arange(0, N)
    first = tl.load(at_ptr)
    mask = (at < n) & ((first >= 0) & (first < n))
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=mask, other=0.0), mask=mask)


torch.manual_seed(0)
x, y = torch.randn(256).bfloat16(), torch.randn(256).bfloat16()
out = torch.empty_like(x)

halves = torch.empty(8).bfloat16()
rows[(8,)](x, halves, 32)
totals = x.view(8, 32).float().sum(1).bfloat16()
torch.testing.assert_close(halves, torch.where(totals > 0, totals / 2, totals))

arithmetic[(1,)](x, y, out, 256)
found = -(x + y) * x - y.abs() * (x * x + 1.5)
fused = (x.double() * y.double() + found.double()).bfloat16()
assert torch.equal(out, torch.where(x > y, torch.maximum(found, y), fused))

sums[(1,)](x, out, 256)
total = x.float().sum().bfloat16()
expected = x.float().cumsum(0).bfloat16() + x.max() + total + torch.tensor(1.3).bfloat16()
assert torch.equal(out, expected)

square = torch.empty(16, 16)
product[(1,)](x, y, square, 16)
torch.testing.assert_close(square, x.view(16, 16).float() @ y.view(16, 16).float())

numbers = torch.arange(1000, 1256)
casts[(1,)](x, numbers, out, 256)
assert torch.equal(out, (x.float() * 1.01).bfloat16() + x.int().bfloat16() + numbers.bfloat16())

masked[(1,)](x, torch.tensor([1]), 256, out, 256)
assert torch.equal(out, x)
