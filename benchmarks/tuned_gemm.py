"""An autotuned gemm for zero_jit.py: the JIT measures its configs, or a table provides them."""

import torch
import triton
import triton.language as tl

import opforge
from opforge import native

# The m, n and k to tune and measure.
SIZES = {"m": [16, 512, 4096], "n": [4096], "k": [4096]}
TILES = [(16, 64, 128, 4), (32, 128, 64, 4), (64, 128, 64, 4), (128, 128, 64, 8), (128, 256, 64, 8)]
CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}, num_warps=warps, num_stages=3)
    for m, n, k, warps in TILES
]


@triton.autotune(CONFIGS, key=["m", "n", "k"])
@triton.jit
def gemm_kernel(  # noqa: ANN201  # Triton reads them
    a_ptr, b_ptr, out_ptr, m, n, k,  # noqa: ANN001  # Triton reads them
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + row[:, None] * k + inner[None, :]
    b_ptrs = b_ptr + inner[:, None] * n + col[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        left = k - start
        a = tl.load(a_ptrs, mask=(row[:, None] < m) & (inner[None, :] < left), other=0.0)
        b = tl.load(b_ptrs, mask=(inner[:, None] < left) & (col[None, :] < n), other=0.0)
        total = tl.dot(a, b, total)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * n
    mask = (row[:, None] < m) & (col[None, :] < n)
    tl.store(out_ptr + row[:, None] * n + col[None, :], total, mask=mask)


@opforge.op("tuned_gemm::gemm")
def gemm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), dtype=a.dtype, device=a.device)
    gemm_kernel[lambda meta: (triton.cdiv(m, meta["BLOCK_M"]), triton.cdiv(n, meta["BLOCK_N"]))](
        a, b, out, m, n, k
    )
    return out


native.declare(gemm, a=native.tensor("m k", dtype="fp16"), b=native.tensor("k n", dtype="fp16"))
