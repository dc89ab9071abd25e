"""Programs over packages that nobody here wrote: recorded, built and served, without an edit."""

import importlib.util

import pytest
import torch

from support.gpu.served_programs import NO_JIT, opforge, results

PACKAGES = {"liger_program": "liger_kernel", "fla_program": "fla", "flag_gems_program": "flag_gems"}
RECORDED, OTHERS = ("64", "100"), ("37", "512")


@pytest.mark.parametrize("program", PACKAGES)
def test_a_package_is_served_in_a_fresh_process_and_nothing_is_compiled(program, tmp_path):
    package = PACKAGES[program]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -e .[wild]")
    launches, kernels = tmp_path / "launches.json", tmp_path / "kernels"
    cache = tmp_path / "cache"
    recorded = results(
        program, RECORDED, tmp_path / "a.pt", cache=cache, under=("record", "-o", launches)
    )
    opforge("build", launches, "--arch", "sm_90", "-o", kernels)
    served = results(
        program, (*RECORDED, *OTHERS), tmp_path / "b.pt", cache=tmp_path / "another",
        under=("serve", "--strict", kernels), python=("-c", NO_JIT),
    )  # fmt: skip
    jit = results(program, OTHERS, tmp_path / "c.pt", cache=cache)
    # The same variants, as far as a recording goes; others may be rounded differently.
    for size in map(int, RECORDED):
        for one, other in zip(served[size], recorded[size], strict=True):
            assert torch.equal(one, other)
    for size in map(int, OTHERS):
        torch.testing.assert_close(served[size], jit[size])
