"""embedding, cross_entropy, quantize and topk_gating, built for the stand-in driver and called."""

import re

from support.ops.operators import build, run_calls

OPS = (
    "embedding", "embedding_backward", "cross_entropy", "cross_entropy_backward",
    "cross_entropy_in_place", "quantize_rows", "quantize_blocks", "topk_gating",
)  # fmt: skip
FILES = (
    "calls_embedding.py", "calls_cross_entropy.py", "calls_quantize.py", "calls_topk_gating.py",
)  # fmt: skip


def test_every_call_gives_what_torch_gives(tmp_path):
    said = run_calls(build(tmp_path, *(f"{name}:fp32,i64" for name in OPS)), *FILES)
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None, said
    assert int(passed[1]) >= 140
    assert "skipped" not in said, said
