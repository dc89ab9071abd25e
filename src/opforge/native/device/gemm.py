"""A product of matrices, for `mm` and the like in a body, and for ops/gemm."""

# Triton reads these functions' annotations, so they stay objects.

from typing import Any

import triton
import triton.language as tl


def _tiles(m: int, n: int, k: int, num_warps: int, num_stages: int) -> dict[str, int]:
    sizes = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}
    return {**sizes, "num_warps": num_warps, "num_stages": num_stages}


# For tensor cores, and for fp32, which does without them to keep its precision.
HALF_TILES = _tiles(128, 128, 64, 8, 3)
FULL_TILES = _tiles(64, 64, 16, 4, 3)


@triton.jit(do_not_specialize=["down", "across"])
def gemm_kernel(
    a_ptr, b_ptr, c_ptr, out_ptr, alpha, beta, m: tl.int64, n: tl.int64, k: tl.int64,
    a_stack: tl.int64, a_line: tl.int64, b_stack: tl.int64, b_line: tl.int64,
    c_stack: tl.int64, c_row: tl.int64, down: tl.int32, across: tl.int32,
    A_COLUMNS: tl.constexpr, B_COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One tile of a product. Lines (rows or columns) are dense and `a_line` elements apart."""
    stack = (tl.program_id(0) // (down * across)).to(tl.int64)
    tile = tl.program_id(0) % (down * across)
    # Tiles that run at the same time share rows of a and columns of b, so these stay in the cache.
    group: tl.constexpr = 8
    first = tile // (group * across) * group
    height = tl.minimum(down - first, group)
    within = tile % (group * across)
    row = (first + within % height).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = (within // height).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K).to(tl.int64)

    a_at, b_at = a_ptr + stack * a_stack, b_ptr + stack * b_stack
    if A_COLUMNS:
        a_at += row[:, None] + inner[None, :] * a_line
        a_step = tl.cast(a_line, tl.int64) * BLOCK_K
    else:
        a_at += row[:, None] * a_line + inner[None, :]
        a_step = BLOCK_K
    if B_COLUMNS:
        b_at += inner[:, None] + col[None, :] * b_line
        b_step = BLOCK_K
    else:
        b_at += inner[:, None] * b_line + col[None, :]
        b_step = tl.cast(b_line, tl.int64) * BLOCK_K
    rows, cols = row[:, None] < m, col[None, :] < n
    total = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    # Inductor makes a k of 1 a constant, which has no type of its own.
    left = tl.cast(k, tl.int64)
    for _ in range(tl.cast((left + (BLOCK_K - 1)) // BLOCK_K, tl.int32)):
        a = tl.load(a_at, mask=rows & (inner[None, :] < left), other=0.0)
        b = tl.load(b_at, mask=(inner[:, None] < left) & cols, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
        a_at += a_step
        b_at += b_step
        left -= BLOCK_K
    # Compiled code passes numbers in double precision.
    total *= tl.cast(alpha, tl.float32)
    # As in BLAS, c is not read if beta is 0: it may hold anything.
    if beta != 0:
        c_at = c_ptr + stack * c_stack + row[:, None] * c_row + col[None, :]
        total += tl.cast(beta, tl.float32) * tl.load(c_at, mask=rows & cols, other=0.0).to(
            tl.float32
        )
    out_at = out_ptr + stack * m * n + row[:, None] * n + col[None, :]
    tl.store(out_at, total, mask=rows & cols)


# What `opforge tune` tries instead: few rows, few columns, and much of both.
_HALF = [
    HALF_TILES, _tiles(128, 256, 64, 8, 3), _tiles(256, 128, 64, 8, 3), _tiles(128, 128, 64, 4, 4),
    _tiles(128, 64, 64, 4, 4), _tiles(64, 128, 64, 4, 4), _tiles(64, 64, 64, 4, 4),
    _tiles(32, 64, 128, 4, 4), _tiles(64, 32, 128, 4, 4), _tiles(16, 128, 64, 4, 4),
    _tiles(16, 64, 128, 4, 5), _tiles(16, 32, 128, 2, 5),
]  # fmt: skip
_FULL = [
    FULL_TILES, _tiles(128, 64, 16, 8, 3), _tiles(64, 128, 16, 8, 3), _tiles(128, 128, 16, 8, 3),
    _tiles(64, 32, 32, 4, 3), _tiles(32, 64, 32, 4, 3), _tiles(32, 32, 32, 4, 3),
    _tiles(16, 64, 32, 4, 3), _tiles(16, 32, 64, 2, 3),
]  # fmt: skip
_COUNTED = triton.heuristics({
    "down": lambda given: triton.cdiv(given["m"], given["BLOCK_M"]),
    "across": lambda given: triton.cdiv(given["n"], given["BLOCK_N"]),
})(gemm_kernel)  # fmt: skip


def _tuner(tried: list[dict[str, int]]) -> Any:
    configs = [
        triton.Config(
            {n: t[n] for n in t if n.startswith("BLOCK")}, t["num_warps"], t["num_stages"]
        )
        for t in tried
    ]
    return triton.autotune(configs, key=["m", "n", "k", "A_COLUMNS", "B_COLUMNS"])(_COUNTED)


HALF_TUNER, FULL_TUNER = _tuner(_HALF), _tuner(_FULL)
