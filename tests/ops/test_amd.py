"""The operators natively on the stand-in for AMD's driver; in Python they are the same there."""

import re

import pytest

from support.ops.operators import build, run_calls

from .test_attention import OPS as ATTENTION
from .test_inference import FILES as INFERENCE_CALLS
from .test_inference import OPS as INFERENCE
from .test_rows import OPS as ROWS

PARTS = {
    "elementwise": (("add:bf16,fp32,i8,u64", "mul:fp32,u64"), ("calls_elementwise.py",), 40),
    "rotary": (("rotary:fp32",), ("calls_rotary.py",), 5),
    "rows": ([f"{name}:fp32" for name in (*ROWS, "gemm")], ("calls_rows.py", "calls_gemm.py"), 200),
    "inference": ([f"{name}:fp32,i64" for name in INFERENCE], INFERENCE_CALLS, 50),
    "attention": ([f"{name}:fp16" for name in ATTENTION], ("calls_attention.py",), 6),
}


@pytest.mark.parametrize("part", PARTS)
def test_every_call_gives_what_torch_gives(tmp_path, part):
    wanted, files, least = PARTS[part]
    built = build(tmp_path, *wanted, vendor="amd")
    said = run_calls(built, *files, only="native", vendor="amd")
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None, said
    assert int(passed[1]) >= least
    assert "skipped" not in said, said
