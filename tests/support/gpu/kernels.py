"""Triton kernels for the GPU tests, each a multiple of its input, in every stacking."""

import triton
import triton.language as tl


@triton.jit
def double(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * 2, mask=mask)


@triton.jit
def accumulate(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.atomic_add(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)


@triton.jit
def affine(  # noqa: PLR0917  # kernels have many parameters
    x_ptr, bias_ptr, out_ptr, n, terms: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr = 128
):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    value = tl.load(x_ptr + offsets, mask=mask)
    if bias_ptr is not None:
        value += tl.load(bias_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, (value * terms[0] + terms[1]).to(DTYPE), mask=mask)


@triton.jit
def double_described(x, out, ROWS: tl.constexpr, COLS: tl.constexpr):
    row, col = tl.program_id(0) * ROWS, tl.program_id(1) * COLS
    out.store([row, col], x.load([row, col]) * 2)


def fewer_for_small(configs, named, **_):
    return configs[:1] if named["n"] < 100_000 else configs


def block_for(arguments):
    return triton.next_power_of_2(min(arguments["n"], 1024))


CONFIGS = [triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256}, num_warps=8)]
WARPS = [triton.Config({}, num_warps=2), triton.Config({}, num_warps=4)]

autotuned = triton.autotune(CONFIGS, key=["n"])(double)
pruned = triton.autotune(
    CONFIGS, key=["n"], prune_configs_by={"early_config_prune": fewer_for_small}
)(double)
reset = triton.autotune(CONFIGS, key=["n"], reset_to_zero=["out_ptr"])(accumulate)
restored = triton.autotune(CONFIGS, key=["n"], restore_value=["out_ptr"])(accumulate)
heuristic = triton.heuristics({"BLOCK": block_for})(double)
autotuned_heuristic = triton.autotune(WARPS, key=["n"])(heuristic)
heuristic_autotuned = triton.heuristics({})(autotuned)


@triton.autotune(CONFIGS, key=["n"], pre_hook=lambda arguments, **_: None)
@triton.jit
def hooked(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * 2, mask=mask)


@triton.jit
def softmax(x_ptr, out_ptr, columns, stride, BLOCK: tl.constexpr):
    row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    mask = offsets < columns
    values = tl.load(x_ptr + row * stride + offsets, mask=mask, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out_ptr + row * stride + offsets, powers / tl.sum(powers, axis=0), mask=mask)
