"""Functions of packages that nobody here wrote, as native libraries, against eager torch."""

import importlib.util

import pytest
import torch

from support.wild.native_checks import on_gpu, unimported

# Results of 66 functions, at three sizes.
HELD = {"liger_kernel": 63, "fla": 33, "flag_gems": 108, "conch": 15, "torchao": 15}
# Its releases need a torch that is about as new.
NEEDS_NEW_TORCH = {"torchao"}


@pytest.mark.parametrize("package", HELD)
def test_a_library_of_a_package_computes_what_torch_does(package, tmp_path):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -e .[wild]")
    why = unimported(package) if package in NEEDS_NEW_TORCH else ""
    if why:
        pytest.skip(f"{package} cannot be imported with torch {torch.__version__}: {why}")
    differing, count = on_gpu(package, tmp_path)
    assert differing == []
    assert count >= HELD[package]
