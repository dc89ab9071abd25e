"""attention and its relatives, built for the stand-in driver and called."""

import re

from support.ops.operators import build, run_calls

# Packed sequences have the same kernels.
OPS = ("attention", "attention_backward", "paged_attention")


def test_every_call_gives_what_torch_gives(tmp_path):
    said = run_calls(build(tmp_path, *(f"{name}:fp16" for name in OPS)), "calls_attention.py")
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None, said
    assert int(passed[1]) >= 28
    assert "skipped" not in said, said
