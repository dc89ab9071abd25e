"""attention and its relatives, built for the stand-in drivers and called."""

import pytest

from support.ops.operators import VENDORS, build, count_passed, run_calls

# Packed sequences have the same kernels.
OPS = ("attention", "attention_backward", "paged_attention")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("attention"), *(f"{name}:fp16" for name in OPS))


@pytest.mark.parametrize(("vendor", "least"), [*zip(VENDORS, (18, 6), strict=True)])
def test_every_call_gives_what_torch_gives(built, vendor, least):
    assert count_passed(run_calls(built, "calls_attention.py", vendor=vendor)) >= least
