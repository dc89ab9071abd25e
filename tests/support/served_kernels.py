"""Kernels that tests record, build and serve."""

import enum

import torch
import triton
import triton.language as tl
from torch._subclasses import FakeTensorMode

import opforge


@triton.jit
def plus_one(x):
    return x + 1


@triton.jit
def combine(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr, ACT: tl.constexpr = None):  # noqa: PLR0917
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    total = tl.load(x_ptr + at, mask=mask)
    if y_ptr is not None:
        total += tl.load(y_ptr + at, mask=mask)
    if ACT is not None:
        total = ACT(total)
    tl.store(out_ptr + at, total, mask=mask)


@triton.autotune([triton.Config({"BLOCK": b}) for b in (64, 128)], key=["n"])
@triton.jit
def tuned(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=mask) * 2, mask=mask)


def _fitting(configs, given, **_):
    return [config for config in configs if config.kwargs["BLOCK"] >= given["n"]]


@triton.autotune(
    [triton.Config({"BLOCK": b}) for b in (64, 128)], ["n"],
    prune_configs_by={"early_config_prune": _fitting},
)  # fmt: skip
@triton.jit
def pruned(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


@triton.jit
def mixed(out_ptr, n, seed):
    # In 32 bits the product wraps.
    tl.store(out_ptr, (seed * 1103515245 + 12345 + n * 0) >> 16)


class Size(enum.IntEnum):
    SMALL = 64


@triton.jit
def chosen(mask_ptr, out_ptr):
    if tl.load(mask_ptr):
        tl.store(out_ptr, 4)


@triton.jit
def narrowed(x_ptr, out_ptr):
    tl.store(out_ptr, tl.load(x_ptr).to(tl.float32))


@triton.jit
def doubles(x_ptr, n: tl.float64):
    tl.store(x_ptr, n)


@triton.jit
def annotated(x_ptr, scale: tl.float32, n: tl.int64):
    tl.store(x_ptr, scale * n)


@triton.jit
def staged(x_ptr, n, num_stages: tl.constexpr, num_warps: tl.constexpr = 2):
    tl.store(x_ptr, n * num_stages * num_warps)


@triton.jit
def optional(x_ptr, n):
    tl.store(x_ptr, -1 if n is None else 1)


@triton.jit
def weighted(xs, out_ptr, n, scales, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.load(xs[0] + at, mask=at < n) * scales[0]
    if xs[1] is not None:
        total += tl.load(xs[1] + at, mask=at < n) * scales[1][0]
    tl.store(out_ptr + at, total, mask=at < n)


def _set_block(args):
    args["x_desc"].block_shape = [args["M"], 32]


@triton.autotune([triton.Config({"M": m}, pre_hook=_set_block) for m in (16, 64)], key=[])
@triton.jit
def tiled(x_desc, M: tl.constexpr):
    x_desc.store([0, 0], tl.full([M, 32], 1, tl.float16))


def scaling(factor, more=None):
    """A kernel that is made inside a function, with one that it calls."""
    language, times = tl, tl.constexpr(factor)

    @triton.jit(noinline=True)
    def scaled(x):
        return x * times

    @triton.jit(do_not_specialize=["n"])
    def kernel(x_ptr, n, BLOCK: language.constexpr, ONE: language.constexpr = 1):
        at = language.arange(0, BLOCK)
        value = language.load(x_ptr + at, mask=at < n) * scaled(1.5)
        if more is not None:
            value += more
        language.store(x_ptr + at, value + ONE, mask=at < n)

    return kernel


def made():
    @triton.jit
    def inner(x_ptr):
        pass

    return inner


def recorded(*launches, arch="sm_80"):
    """The recording of calls that are made with fake tensors."""
    with opforge.record() as session, opforge.target(arch), FakeTensorMode():
        for launch in launches:
            launch(torch.empty(1000, device="cuda"))
    return session.recording
