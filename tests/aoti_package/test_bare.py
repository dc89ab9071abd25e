"""While a model is exported its own launches are refused, and nothing torch says is lost."""

import pytest

import opforge
from opforge.aoti_package.bare import Refusal, bare_launches_refused
from opforge.errors import BareKernel, OpforgeWarning
from support.launching import double


def test_a_bare_launch_is_refused_by_name_and_only_inside():
    with bare_launches_refused(), pytest.raises(BareKernel, match="a bare launch of double"):
        double[(1,)](None, None, 1, BLOCK=16)
    assert opforge._compat.launches.current() is None


def test_a_failed_analysis_is_told_with_the_kernels_name():
    with pytest.warns(OpforgeWarning, match=r"kernel double \(.*launching\.py:\d+\) writes could"):
        assert Refusal().written(double, ["x"], ["x"], ValueError("no")) == ["x"]
