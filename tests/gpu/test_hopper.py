"""What came with sm_90, in libraries: tensor descriptors, clusters, dependent launches, Gluon."""

import importlib

import pytest
import torch

import opforge
from opforge import native

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
    reason="needs a GPU of sm_90 or later",
)
SIZES = [(64, 32), (1, 16), (100, 80), (3, 4096)]


@pytest.fixture(scope="module")
def ops():
    return importlib.import_module("support.native.hopper_ops")


@pytest.fixture(scope="module")
def loaded(ops, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hopper")
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
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
    with pytest.raises(RuntimeError, match=r"x_desc is at 0x.*, not a multiple of 16"):
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
