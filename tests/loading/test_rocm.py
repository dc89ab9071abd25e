"""A build of torch for ROCm: its `cuda` tensors are AMD's, and calls go to HIP."""

import dataclasses
import subprocess

import pytest

from support.native import hand_made
from support.processes import environment, python

from .conftest import build, program


def add_alone():
    """`demo::add` for sm_80, sm_90 and gfx942."""
    whole = program()
    (op,) = (op for op in whole.ops if op.name == "add")
    return hand_made.for_both(dataclasses.replace(whole, ops=(op,)))


@pytest.fixture(scope="module")
def for_both(tmp_path_factory):
    return build(add_alone(), tmp_path_factory.mktemp("rocm"))


@pytest.fixture(scope="module")
def for_amd(tmp_path_factory):
    library = add_alone()
    kernels = tuple(
        dataclasses.replace(k, images=tuple(i for i in k.images if i.arch.is_amd))
        for k in library.kernels
    )
    archs = tuple(arch for arch in library.archs if arch.is_amd)
    library = dataclasses.replace(library, kernels=kernels, archs=archs)
    return build(library, tmp_path_factory.mktemp("amd"))


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


def images_launched(library, torch, how):
    command = [python(), "-c", CODE, str(library), torch, how]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("how", ["adapter", "ctypes"])
@pytest.mark.parametrize(("torch", "image"), [("cuda", "sm_80"), ("rocm", "gfx942")])
def test_calls_go_to_the_driver_that_torch_was_built_for(for_both, torch, image, how):
    assert images_launched(for_both, torch, how) == f"['{image}']"


@pytest.mark.parametrize("how", ["adapter", "ctypes"])
def test_host_memory_is_that_of_the_vendor_of_the_library(for_amd, how):
    assert images_launched(for_amd, "cuda", how) == "['gfx942']"
