"""Bare launches are refused during an export, and failed analyses become warnings."""

import pytest

import opforge
from opforge.aoti_package.bare_launches import Refusal, bare_launches_refused
from opforge.errors import OpforgeWarning, UnsupportedBody
from support.launching import double


def test_a_bare_launch_is_refused_by_name_and_only_inside_the_block():
    with bare_launches_refused(), pytest.raises(UnsupportedBody, match="a bare launch of double"):
        double[(1,)](None, None, 1, BLOCK=16)
    assert opforge._compat.launches.current() is None


def test_a_failed_analysis_warns_with_the_kernels_name():
    with pytest.warns(OpforgeWarning, match=r"kernel double \(.*launching\.py:\d+\) writes"):
        assert Refusal().written(double, ["x"], ["x"], ValueError("no")) == ["x"]
