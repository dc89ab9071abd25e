"""Functions of packages that nobody here wrote: their native programs against eager torch.

They are traced here, and run by Triton's interpreter at three sizes, odd ones and 1 among them;
tests/gpu/test_wild_native.py calls them as libraries on a GPU.
"""

import importlib.util

import pytest

from support.wild.native_checks import interpreted

# Results of 58 functions. The interpreter leaves out 8 of FlagGems, most for masks of `a and b`.
HELD = {"liger_kernel": 63, "fla": 33, "flag_gems": 78, "conch": 15, "torchao": 15}


@pytest.mark.parametrize("package", HELD)
def test_programs_of_a_package_compute_what_torch_does(package, tmp_path):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -e .[wild]")
    differing, count = interpreted(package, tmp_path)
    assert differing == []
    assert count >= HELD[package]
