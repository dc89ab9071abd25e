"""What came with sm_90, in libraries: tensor descriptors, clusters, dependent launches, Gluon."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

import opforge
from opforge import native
from support.gpu import served_programs
from support.gpu.arch import arch_name, current_arch
from support.gpu.served_programs import NO_JIT, run

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or not current_arch().is_hopper_or_later,
    reason="needs a GPU of sm_90 or later",
)
SIZES = [(64, 32), (1, 16), (100, 80), (3, 4096)]


@pytest.fixture(scope="module")
def ops():
    return importlib.import_module("support.native.hopper_ops")


@pytest.fixture(scope="module")
def loaded(ops, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hopper")
    arch = arch_name()
    native.build(ops.EVERY, folder, name="hopper", archs=[arch], torch=True)
    opforge.load(folder)
    with opforge.backend("native"):
        yield torch.ops.hopper


def rows(*shape, dtype=torch.float16):
    generator = torch.Generator("cuda").manual_seed(7)
    return torch.randn(shape, device="cuda", generator=generator).to(dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float8_e4m3fn])
def test_descriptors(loaded, dtype, size):
    x = rows(*size, dtype=dtype)
    wanted = (x.float() * 2).to(dtype)
    twice = loaded.twice_fp8 if dtype is torch.float8_e4m3fn else loaded.twice
    assert torch.equal(twice(x).float(), wanted.float())
    with opforge.backend("jit"):
        assert torch.equal(twice(x).float(), wanted.float())


def test_another_tensor_has_another_map(loaded):
    for size in SIZES * 8:
        x = rows(*size)
        assert torch.equal(loaded.twice(x), x * 2)


def test_the_body_asks_whether_an_address_is_aligned(loaded):
    held = rows(65 * 32)
    for start in (0, 8, 1):
        x = held[start : start + 64 * 32].view(64, 32)
        assert torch.equal(loaded.anywhere(x), x * 2)


@pytest.mark.parametrize("shape", [(5, 3, 20), (2, 4, 32), (1, 1, 4)])
def test_what_lies_outside_is_nan(loaded, shape):
    x = rows(*shape, dtype=torch.float32)
    wanted = torch.full((shape[0], 4, 32), torch.nan, device="cuda")
    wanted[:, : shape[1], : shape[2]] = x + shape[2] + shape[2]
    found = loaded.edges(x).view(shape[0], 4, 32)
    torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.parametrize("size", [(128, 64, 96), (200, 72, 40)])
def test_a_hook_of_an_autotuner_sets_the_blocks(loaded, size):
    m, k, n = size
    a, b = rows(m, k), rows(k, n)
    torch.testing.assert_close(loaded.product(a, b), a @ b, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["dependent", "clustered", "cooperative", "glued"])
@pytest.mark.parametrize("n", [1, 512, 100_001])
def test_launches(loaded, name, n):
    x = rows(n, dtype=torch.float32)
    assert torch.equal(getattr(loaded, name)(x), x * (4 if name == "dependent" else 2))


def test_gluon_moves_by_descriptors(loaded):
    x = rows(130, 48)
    assert torch.equal(loaded.moved(x), x)


def test_a_tensor_that_is_not_aligned_is_refused(loaded):
    x = rows(1000)[1:129].view(8, 16)
    refused = r"x \(x_desc of the kernel\) is at 0x.* a multiple of 16"
    with pytest.raises(RuntimeError, match=refused):
        loaded.twice(x)


def test_kernels_of_older_gpus_take_no_maps(ops, tmp_path):
    """The PTX of sm_80, which newer GPUs run, too."""
    native.build(
        [ops.twice_again], tmp_path, name="hopper80", archs=["sm_80"], torch=True, ptx=True
    )
    opforge.load(tmp_path)
    x = rows(100, 80)
    with opforge.backend("native"):
        assert torch.equal(torch.ops.hopper80.twice_again(x), x * 2)


PROGRAM = Path(served_programs.__file__).with_name("hopper_program.py")
RECORDED = ("64", "100")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Kernels that were recorded with some sizes."""
    folder = tmp_path_factory.mktemp("served")
    launches = folder / "launches.json"
    served_programs.opforge("record", "-o", launches, "--", sys.executable, PROGRAM, *RECORDED)
    assert json.loads(launches.read_text())["missed"] == []
    arch = arch_name()
    served_programs.opforge("build", launches, "--arch", arch, "-o", folder / "kernels")
    return folder / "kernels"


@pytest.fixture(scope="module")
def results(served, tmp_path_factory):
    """What a child prints in which nothing can be compiled, what Triton's JIT does, and counts."""
    sizes = (*RECORDED, "1", "513")
    folder = tmp_path_factory.mktemp("results")
    found = served_programs.opforge(
        "serve", "--strict", "--counts", folder / "counts.json", served, "--",
        sys.executable, "-c", NO_JIT, PROGRAM, *sizes, TRITON_CACHE_DIR=str(folder / "triton"),
    )  # fmt: skip
    counts = json.loads((folder / "counts.json").read_text())
    return found.splitlines(), run(sys.executable, PROGRAM, *sizes).splitlines(), counts


@pytest.mark.parametrize("name", ["twice", "twice of a part", "dependent", "glued", "moved"])
def test_launches_are_served_to_the_bit(results, name):
    # A line is a size, a name and a hash.
    found, wanted = (
        [one for one in part if one.partition(" ")[2].rpartition(" ")[0] == name]
        for part in results[:2]
    )
    assert len(found) == 4
    assert found == wanted


def test_a_served_hook_of_an_autotuner_sets_the_blocks(results):
    # Another configuration may add up in another order; the program compares with torch.
    assert sum(" product " in one for one in results[0]) == 4


def test_nothing_is_left_to_the_jit(results):
    counts = results[2]
    assert counts["handed_over"] == []
    launched = {name.rpartition(":")[2]: n for name, n in counts["launches"].items()}
    assert launched == {
        "twice_kernel": 8, "product_kernel": 4, "dependent_kernel": 16, "gluon_kernel": 4,
        "moved_kernel": 4,
    }  # fmt: skip
