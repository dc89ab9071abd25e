"""What another torch and Triton wrote is used here: `make test-versions TORCH=2.15.0`."""

import ctypes
import os
import subprocess

import numpy as np
import pytest
import torch
from torch._inductor.async_compile import AsyncCompile

import opforge
from opforge.errors import NotServed
from opforge.recording.model import read
from opforge.serving.build import build
from support import version_program
from support.processes import environment
from support.served_folders import interpret
from support.served_kernels import combine, tuned

OTHER = os.environ.get("OPFORGE_OTHER_PYTHON")
pytestmark = pytest.mark.skipif(
    OTHER is None, reason="needs a Python with another torch: make test-versions TORCH=2.15.0"
)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    command = [OTHER, "-m", version_program.__name__, str(folder)]
    subprocess.run(command, env=environment(), check=True)
    return folder


@pytest.fixture
def folder(written):
    return written / "served"


@pytest.fixture
def gpu(device, folder):
    interpret(device, folder, combine, tuned.fn)
    return device


def test_the_other_is_another():
    code = "import torch, triton; print(torch.__version__, triton.__version__)"
    done = subprocess.run([OTHER, "-c", code], capture_output=True, text=True, check=True)
    import triton  # noqa: PLC0415

    one, other = done.stdout.split(), [torch.__version__, triton.__version__]
    assert all(a != b for a, b in zip(one, other, strict=True))


def test_its_folder_serves_launches(gpu, jit, folder):
    opforge.serve(folder, strict=True)
    x, out = torch.randn(1000), torch.empty(1000)
    combine[(16,)](x, x, out, 1000, BLOCK=64)
    torch.testing.assert_close(out, x + x)
    assert not jit


def test_a_kernel_of_a_graph_needs_the_torch_that_printed_it(device, folder):
    opforge.serve(folder, strict=True)
    with pytest.raises(NotServed, match="has triton_poi_fused_add with a different text"):
        AsyncCompile().triton(version_program.GRAPH, version_program.GRAPH_TEXT)


def test_its_recording_is_built_but_for_kernels_of_graphs(written, tmp_path):
    built = build(read(written / "recording.json"), tmp_path / "again", archs=["sm_80"])
    assert {kernel.name for kernel in built.library.functions} == {"combine", "tuned"}
    assert "build with the torch that the program was recorded with" in "\n".join(built.notes)


@pytest.mark.parametrize("adapter", [True, False])
def test_its_library_computes(standin, written, adapter):
    def double(launched):
        count = launched.read(2, ctypes.c_int32)
        x, out = (
            np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))
            for address in (launched.read(i, ctypes.c_void_p) for i in range(2))
        )
        np.multiply(x, 2, out=out)

    standin.execute = double
    library = opforge.load(written / "dist", host_memory=True, adapter=adapter)
    x = torch.randn(1000)
    assert torch.equal(torch.ops.versions.doubled(x), x * 2)
    library.close()
    library.unload()
