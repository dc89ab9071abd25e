"""rotary of the operator tree: built for the stand-in drivers, called by `calls_rotary.py`."""

import pytest

from support.ops.operators import VENDORS, build, count_passed, run_calls


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("rotary"), "rotary:fp32")


@pytest.mark.parametrize(("vendor", "least"), [*zip(VENDORS, (70, 5), strict=True)])
def test_every_call_gives_what_torch_gives(built, vendor, least):
    assert count_passed(run_calls(built, "calls_rotary.py", vendor=vendor)) >= least
