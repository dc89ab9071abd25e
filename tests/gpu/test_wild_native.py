"""Functions of packages that nobody here wrote: their native programs against eager torch."""

import importlib.util

import pytest
import torch

from support.wild.native_checks import results

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
]


@pytest.mark.parametrize("package", ["liger_kernel", "fla", "flag_gems"])
def test_programs_of_a_package_compute_what_torch_does(package, tmp_path):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -e .[wild]")
    differing, count = results(package, tmp_path, "cuda")
    assert differing == []
    assert count >= 33
