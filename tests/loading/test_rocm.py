"""A build of torch for ROCm: its `cuda` tensors are AMD's, and calls go to HIP."""

import dataclasses
import subprocess

import pytest

from support.native import hand_made
from support.processes import environment, python

from .conftest import build, program


@pytest.fixture(scope="module")
def for_both(tmp_path_factory):
    """`demo::add` for sm_80, sm_90 and gfx942."""
    whole = program()
    (op,) = (op for op in whole.ops if op.name == "add")
    library = hand_made.for_both(dataclasses.replace(whole, ops=(op,)))
    return build(library, tmp_path_factory.mktemp("rocm"))


CODE = """
import sys
import torch
from support.standin.rocm import pretend_rocm
if sys.argv[2] == "rocm":
    pretend_rocm()
from support.standin.driver import AMD, NVIDIA, load_standin
cuda, hip = load_standin(NVIDIA), load_standin(AMD)
cuda.reset(), hip.reset()
import opforge
ops = opforge.load(sys.argv[1], host_memory=True, adapter=sys.argv[3] == "adapter")
torch.ops.demo.add(torch.ones(2, 3), torch.ones(2, 3))
print([launched.image[-6:].decode().strip() for launched in cuda.launches + hip.launches])
"""


@pytest.mark.parametrize("how", ["adapter", "ctypes"])
@pytest.mark.parametrize(("torch", "image"), [("cuda", "sm_80"), ("rocm", "gfx942")])
def test_calls_go_to_the_driver_that_torch_was_built_for(for_both, torch, image, how):
    command = [python(), "-c", CODE, str(for_both), torch, how]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"['{image}']\n"
