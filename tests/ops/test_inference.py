"""embedding, cross_entropy, quantize and topk_gating, built for the stand-in drivers and called."""

import pytest

from support.ops.operators import VENDORS, build, count_passed, run_calls

OPS = (
    "embedding", "embedding_backward", "cross_entropy", "cross_entropy_backward",
    "cross_entropy_in_place", "quantize_rows", "quantize_blocks", "topk_gating",
)  # fmt: skip
FILES = (
    "calls_embedding.py", "calls_cross_entropy.py", "calls_quantize.py", "calls_topk_gating.py",
)  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("inference"), *(f"{name}:fp32,i64" for name in OPS))


@pytest.mark.parametrize(("vendor", "least"), [*zip(VENDORS, (95, 50), strict=True)])
def test_every_call_gives_what_torch_gives(built, vendor, least):
    assert count_passed(run_calls(built, *FILES, vendor=vendor)) >= least
