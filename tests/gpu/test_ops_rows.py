"""The operators of ops/ that work on rows, and gemm, on a GPU, in every mode.

The calls are those of tests/ops, in processes of their own, several at a time: much of their time
goes into compiling kernels.
"""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.gpu.arch import arch_name
from support.ops import operators

ROWS = ("silu", "silu_and_mul", "gelu_and_mul", "softmax", "rms_norm", "layer_norm")
# What each library contains: they are built at the same time.
LIBRARIES = {
    "rows": (*ROWS, *(f"{name}_backward" for name in ROWS)),
    "inference": (
        "embedding", "embedding_backward", "cross_entropy", "cross_entropy_backward",
        "cross_entropy_in_place", "quantize_rows", "quantize_blocks", "topk_gating",
    ),
    "attention": (
        "attention:fp16,bf16", "attention_backward:fp16,bf16", "paged_attention:fp16,bf16",
        "attention_varlen:fp16,bf16", "attention_varlen_backward:fp16,bf16",
    ),
    "gemm": ("gemm",),
}  # fmt: skip
# The library, the file, which of its tests, and how many there are at least.
PARTS = {
    "rows natively": ("rows", "calls_rows.py", "native", 180),
    "rows in eager": ("rows", "calls_rows.py", "not native", 180),
    "rows compiled": ("rows", "calls_rows_modes.py", "compiled", 20),
    "rows exported and differentiated": ("rows", "calls_rows_modes.py", "not compiled", 50),
    "embedding": ("inference", "calls_embedding.py", "", 25),
    "cross_entropy": ("inference", "calls_cross_entropy.py", "", 25),
    "quantize": ("inference", "calls_quantize.py", "", 60),
    "topk_gating": ("inference", "calls_topk_gating.py", "", 20),
    "attention natively": ("attention", "calls_attention.py", "native", 18),
    "attention of sizes": ("attention", "calls_attention.py", "test_sizes and eager", 12),
    "attention": ("attention", "calls_attention.py", "not test_sizes and not native", 12),
    "gemm natively": ("gemm", "calls_gemm.py", "native", 20),
    "gemm": ("gemm", "calls_gemm.py", "not native", 25),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """All parts, each started as soon as its library is built."""
    arch = arch_name()
    with ThreadPoolExecutor(len(LIBRARIES) + len(PARTS)) as pool:
        built = {
            name: pool.submit(operators.build, tmp_path_factory.mktemp(name), *wanted, arch=arch)
            for name, wanted in LIBRARIES.items()
        }

        def run(library, file, only, _):
            return operators.run_calls(built[library].result(), file, device="cuda", only=only)

        yield {part: pool.submit(run, *chosen) for part, chosen in PARTS.items()}


@pytest.mark.parametrize("part", PARTS)
def test_every_call_gives_what_torch_gives(running, part):
    said = running[part].result()
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None, said
    assert int(passed[1]) >= PARTS[part][-1]
    assert "skipped" not in said, said
