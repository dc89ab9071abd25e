"""The operators of ops/ that work on rows, and gemm, on a GPU, in every mode.

The calls are those of tests/ops, in processes of their own, several at a time: much of their time
goes into compiling kernels.
"""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from support.ops import operators

NAMES = ("silu", "silu_and_mul", "gelu_and_mul", "softmax", "rms_norm", "layer_norm")
OTHERS = (
    "embedding", "embedding_backward", "cross_entropy", "cross_entropy_backward",
    "cross_entropy_in_place", "quantize_rows", "quantize_blocks", "topk_gating",
)  # fmt: skip
ATTENTION = (
    "attention", "attention_backward", "attention_varlen", "attention_varlen_backward",
    "paged_attention",
)  # fmt: skip
# Which tests of a file, and how many there are at least.
PARTS = {
    "rows natively": ("calls_rows.py", "native", 180),
    "rows in eager": ("calls_rows.py", "not native", 180),
    "rows compiled": ("calls_rows_modes.py", "compiled", 20),
    "rows exported and differentiated": ("calls_rows_modes.py", "not compiled", 50),
    "embedding": ("calls_embedding.py", "", 25),
    "cross_entropy": ("calls_cross_entropy.py", "", 25),
    "quantize": ("calls_quantize.py", "", 60),
    "topk_gating": ("calls_topk_gating.py", "", 20),
    "attention": ("calls_attention.py", "", 30),
    "gemm natively": ("calls_gemm.py", "native", 20),
    "gemm": ("calls_gemm.py", "not native", 25),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """All parts, started at once."""
    major, minor = torch.cuda.get_device_capability()
    wanted = (*NAMES, *(f"{name}_backward" for name in NAMES), *OTHERS, "gemm")
    wanted = (*wanted, *(f"{name}:fp16,bf16" for name in ATTENTION))
    folder = tmp_path_factory.mktemp("rows")
    built = operators.build(folder, *wanted, arch=f"sm_{major}{minor}")
    with ThreadPoolExecutor(len(PARTS)) as pool:
        yield {
            part: pool.submit(operators.run_calls, built, file, device="cuda", only=only)
            for part, (file, only, _) in PARTS.items()
        }


@pytest.mark.parametrize("part", PARTS)
def test_every_call_gives_what_torch_gives(running, part):
    said = running[part].result()
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None, said
    assert int(passed[1]) >= PARTS[part][2]
    assert "skipped" not in said, said
