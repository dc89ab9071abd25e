"""Kernels for the tables: only their signatures matter, nothing compiles them."""

# ruff: noqa: PLR0917  # kernels have many parameters

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def block(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


@triton.jit
def rows(x, out, stride_x, stride_out, cols, BLOCK: tl.constexpr):
    pass


@triton.jit
def take(x, out=None, a=None, b=None, c=None, d=None, A: tl.constexpr = 0, B: tl.constexpr = 0):
    """Takes any arguments."""


@triton.jit
def strided(x, out, x0, x1, out0, out1, m, n, BLOCK: tl.constexpr):
    pass


@triton.jit
def strided4(
    x, y, out, x0, x1, x2, x3, y0, y1, y2, y3, o0, o1, o2, o3, n0, n1, n2, n3, B: tl.constexpr
):  # fmt: skip
    pass


@triton.jit
def annotated(x, out, a: tl.int64, b: tl.float32, c: tl.int32, d: tl.int1):
    pass


@triton.jit(do_not_specialize=["a"], do_not_specialize_on_alignment=["b"])
def unspecialized(x, out, a, b, c):
    pass


@triton.autotune(
    [triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 128}, num_stages=4)],
    key=["n"],
)
@triton.jit
def tuned(x, out, n, BLOCK: tl.constexpr):
    pass


@triton.autotune([triton.Config({"BM": 32}), triton.Config({"BM": 64})], key=["n"])
@triton.heuristics(
    {"EVEN": lambda a: a["n"] % a["BM"] == 0, "num_warps": lambda a: 4 if a["n"] < 4096 else 8}
)
@triton.jit
def tuned_and_guided(x, out, n, BM: tl.constexpr, EVEN: tl.constexpr):
    pass


@triton.autotune(
    [triton.Config({"BLOCK": 64}, pre_hook=lambda nargs: nargs["out"].zero_())], key=["n"]
)
@triton.jit
def hooked(x, out, n, BLOCK: tl.constexpr):
    pass


class Wrapper(triton.KernelInterface):
    """As in public libraries: an object around a kernel, with its own `run`."""

    def __init__(self, fn):
        self.fn = fn
        self.arg_names = fn.arg_names
        self.cache = {}

    def run(self, *args, grid, **kwargs):
        return self.fn.run(*args, grid=grid, **kwargs)


class Indexed:
    """A wrapper that only has `__getitem__`."""

    def __init__(self, fn):
        self.fn = fn

    def __getitem__(self, grid):
        return functools.partial(self.fn.run, grid=grid, warmup=False)


class Reinterpreted:
    """Not a tensor, but Triton treats it as one."""

    def __init__(self, base, offset):
        self.base, self.dtype, self.offset = base, base.dtype, offset * base.element_size()

    def data_ptr(self):
        return self.base.data_ptr() + self.offset


wrapped = Wrapper(Wrapper(tuned_and_guided))
indexed = Indexed(block)


def launching(launch):
    """A body that launches something for a new tensor: `launch(x, out)`."""

    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        launch(x, out)
        return out

    return body
