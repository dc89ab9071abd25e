"""Tensor descriptors: recorded, built, and served from a folder on the stand-in driver."""

import dataclasses

import pytest
import torch
import triton
from torch._subclasses import FakeTensorMode
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

import opforge
from opforge.errors import NotServed, OpforgeWarning
from opforge.native.ir.kernels import Choice
from opforge.serving.build import build
from opforge.serving.plan import plan
from support.native.hopper_ops import edges_kernel, moved_kernel, product_kernel, twice_kernel
from support.served_folders import interpret
from support.served_kernels import tiled
from support.standin.tensor_maps import Map

ENCODE = "cuTensorMapEncodeTiled"
LAYOUT = gl.NVMMASharedLayout.get_default_for([64, 32], gl.float16)


def described(tensor, block=(64, 32), **given):
    return TensorDescriptor.from_tensor(tensor, [*block], **given)


def twice(x, block=(64, 32), dtype=None):
    out = torch.empty_like(x)
    m, n = block
    grid = (triton.cdiv(x.shape[0], m), triton.cdiv(x.shape[1], n))
    twice_kernel[grid](described(x, block), described(out, block), M=m, N=n)
    return out


def edges(x):
    out = torch.empty(x.shape[0], 128, device=x.device)
    given = described(x, (1, 4, 32), padding="nan")
    edges_kernel[(x.shape[0],)](given, out, out.stride(0), BLOCK=128)
    return out


def product(a, b):
    out = a.new_empty(a.shape[0], b.shape[1])
    parts = [described(t, (1, 1)) for t in (a, b, out)]
    grid = (triton.cdiv(a.shape[0], 64), triton.cdiv(b.shape[1], 64))
    product_kernel[grid](*parts, a.shape[1])
    return out


def moved(x, layout=LAYOUT):
    out = torch.empty_like(x)
    parts = [GluonDescriptor.from_tensor(t, [64, 32], layout) for t in (x, out)]
    grid = (triton.cdiv(x.shape[0], 64), triton.cdiv(x.shape[1], 32))
    moved_kernel[grid](*parts, M=64, N=32)


@pytest.fixture(scope="module")
def recording():
    with opforge.record() as session, opforge.target("sm_90"):
        with FakeTensorMode():
            for dtype in (torch.float16, torch.float32):
                twice(torch.empty(64, 32, device="cuda", dtype=dtype))
            edges(torch.empty(2, 3, 20, device="cuda"))
            product(*(torch.empty(64, 64, device="cuda", dtype=torch.float16) for _ in range(2)))
        # Gluon's descriptors ask for the address, which fake tensors do not have.
        moved(torch.empty(64, 32, dtype=torch.float16))
    assert not session.recording.missed
    return session.recording


@pytest.fixture(scope="module")
def folder(recording, tmp_path_factory):
    made = build(recording, tmp_path_factory.mktemp("tma") / "kernels", archs=["sm_80", "sm_90"])
    # A descriptor takes no offsets of 64 bits, and Gluon's are for sm_90.
    wide, gluon = made.notes
    assert "k: i64" in wide
    assert gluon.startswith("moved_kernel(")
    assert " is not built for sm_80" in gluon
    return made.folder


@pytest.fixture(params=[(9, 0), (8, 0)], ids=["maps", "no maps"])
def capability(request):
    return request.param


@pytest.fixture
def gpu(device, folder, capability):
    device.reset(capability=capability)
    interpret(device, folder, twice_kernel, edges_kernel, product_kernel.fn)
    yield device
    assert device.errors == []


newer = pytest.mark.parametrize("capability", [(9, 0)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("size", [(64, 32), (1, 16), (70, 40)])
def test_launches_with_descriptors_are_served_for_all_sizes(gpu, jit, folder, dtype, size):
    opforge.serve(folder, strict=True)
    x = torch.randn(size).to(dtype)
    assert torch.equal(twice(x), x * 2)
    assert not jit
    assert opforge.served().launches == {"support.native.hopper_ops:twice_kernel": 1}


def test_padding_is_the_descriptors_own(gpu, jit, folder):
    opforge.serve(folder, strict=True)
    x = torch.randn(2, 3, 20)
    wanted = torch.full((2, 4, 32), torch.nan)
    wanted[:, :3, :20] = x + 20 + 20
    torch.testing.assert_close(edges(x).view(2, 4, 32), wanted, equal_nan=True)


def test_the_hook_of_an_autotuner_sets_the_blocks(gpu, jit, folder):
    opforge.serve(folder, strict=True)
    a, b = torch.randn(72, 40).half(), torch.randn(40, 24).half()
    torch.testing.assert_close(product(a, b), a @ b, rtol=1e-2, atol=1e-2)
    product_kernel.cache.clear()


@newer
def test_the_map_has_what_triton_compiled_for(gpu, jit, folder):
    seen = []
    gpu.execute = lambda launched: seen.append([launched.read(index, Map) for index in (0, 5)])
    opforge.serve(folder, strict=True)
    x = torch.zeros(70, 40, dtype=torch.float16)
    twice(x)
    # 40 columns of the first half, which are not 80 of the tensor.
    part = torch.zeros(70, 80, dtype=torch.float16)[:, :40]
    twice_kernel[(1,)](described(part), described(x, padding="nan"), M=64, N=32)
    for given, strided in zip(seen, (80, 160), strict=True):
        assert (given[0].rank, given[0].element, [*given[0].extents[:2]]) == (2, 6, [40, 70])
        assert given[0].between[0] == strided
        assert ([*given[0].box[:2]], given[0].swizzle) == ([32, 64], 2)
    assert [one.fill for one in seen[1]] == [0, 1]
    assert seen[0][0].address == seen[1][1].address == x.data_ptr()


@newer
def test_gluon_kernels_are_served_with_the_layout(gpu, jit, folder):
    seen = []
    gpu.execute = lambda launched: seen.append(launched.read(0, Map))
    opforge.serve(folder)
    x = torch.zeros(130, 48, dtype=torch.float16)
    # The same by its text, and once more as the same object.
    for layout in (LAYOUT, dataclasses.replace(LAYOUT), dataclasses.replace(LAYOUT)):
        moved(x, layout)
        moved(x, layout)
    assert [(one.address, one.swizzle) for one in seen] == [(x.data_ptr(), 2)] * 6
    assert not jit
    with pytest.warns(OpforgeWarning) as warned:
        moved(x, dataclasses.replace(LAYOUT, swizzle_byte_width=32))
    assert len(jit) == 1
    (text,) = [str(w.message) for w in warned]
    assert "x_desc is a descriptor of torch.float16 in blocks of [64, 32] with NVMMA" in text
    assert "(swizzle_byte_width=32, element_bitwidth=16" in text
    assert ", but was built as a descriptor of torch.float16 in blocks of [64, 32] with " in text


@newer
def test_maps_are_kept(gpu, jit, folder):
    opforge.serve(folder, strict=True)
    # No other test has as many rows: its maps may still be kept.
    x, out = torch.randn(61, 32).half(), torch.empty(61, 32).half()
    for _ in range(3):
        twice_kernel[(1,)](described(x), described(out), M=64, N=32)
    assert gpu.calls.count(ENCODE) == 2
    twice_kernel[(1,)](described(x[:31]), described(out), M=64, N=32)
    assert gpu.calls.count(ENCODE) == 3


def test_other_blocks_dtypes_and_pointers_are_tritons(gpu, jit, folder):
    opforge.serve(folder)
    x = torch.zeros(64, 32, dtype=torch.float16)
    half = "a descriptor of torch.float16 in blocks of [64, 32]"
    told = {
        "a descriptor of torch.float16 in blocks of [32, 32]": described(x, (32, 32)),
        "a descriptor of torch.float16 in blocks of [32]": described(x.view(-1), (32,)),
        "a descriptor of torch.bfloat16 in blocks of [64, 32]": described(x.bfloat16()),
        "torch.float16": x,
    }
    for found, given in told.items():
        with pytest.warns(OpforgeWarning) as warned:
            twice_kernel[(1,)](given, given, M=64, N=32)
        (text,) = [str(w.message) for w in warned]
        assert f"is launched by Triton: x_desc is {found}, but was built as {half}. To" in text
    assert len(jit) == len(told)
    opforge.serve(folder, strict=True)
    with pytest.raises(NotServed, match=r"out_desc is a descriptor of torch.float16 in blocks of "):
        twice_kernel[(1,)](described(x), described(x, (32, 32)), M=64, N=32)


@newer
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"strides": [12, 1]}, "stride 12 in dimension 0; TMA needs a multiple of 16 bytes below"),
        ({"strides": [32, 2]}, "stride 2 in dimension 1; TMA needs 1 in the last one"),
        ({"shape": [0, 32]}, "size 0 in dimension 0; TMA needs at least 1"),
        ({"base": torch.zeros(4096, dtype=torch.float16)[1:]}, "TMA needs a multiple of 16"),
    ],
)
def test_what_tma_cannot_do_is_refused_with_tensor_and_rule(gpu, jit, folder, change, said):
    opforge.serve(folder, strict=True)
    given = described(torch.zeros(64, 32, dtype=torch.float16))
    vars(given).update(change)
    with pytest.raises(ValueError, match=r"^twice_kernel \(") as caught:
        twice_kernel[(1,)](given, given, M=64, N=32)
    line = twice_kernel.fn.__code__.co_firstlineno
    assert f"hopper_ops.py:{line}): x_desc " in str(caught.value)
    assert said in str(caught.value)


@newer
def test_a_driver_that_fails_is_told_about_with_the_tensor(gpu, jit, folder):
    opforge.serve(folder, strict=True)
    x = torch.randn(128, 64).half()
    twice(x)
    fresh = torch.randn(256, 64).half()
    gpu.fail(1, name=ENCODE)
    with pytest.raises(RuntimeError) as caught:
        twice(fresh)
    said = f"{ENCODE}: CUDA_ERROR_INVALID_VALUE (1): "
    assert str(caught.value).startswith(said)
    assert f": at 0x{fresh.data_ptr():x}, sizes [256, 64], strides [64, 1])" in str(caught.value)
    assert torch.equal(twice(fresh), fresh * 2)


def test_blocks_follow_the_configuration_that_a_hook_sets_them_for():
    def launch(rows):
        x = torch.empty(256, 32, device="cuda", dtype=torch.float16)
        tiled.fn[(1,)](described(x, (rows, 32)), M=rows)

    with opforge.record() as session, opforge.target("sm_90"), FakeTensorMode():
        launch(32)
        launch(64)
        # The first configuration has 16 rows, and is taken where there is nothing to measure on.
        x = torch.empty(256, 32, device="cuda", dtype=torch.float16)
        tiled[(1,)](described(x, (1, 1)))
        tiled.cache.clear()
    (kernel,) = session.recording.kernels
    kinds = {dict(v.constants)["M"]: dict(v.types)["x_desc"] for v in kernel.variants}
    assert kinds == {m: f"tensordesc<fp16[{m}, 32]>" for m in (32, 64, 16)}
    # 64 rows were chosen for other sizes, and 128 never launched.
    more = [Choice((), (), (("M", m),), "sm_90") for m in (64, 128)]
    kernel = dataclasses.replace(kernel, choices=(*kernel.choices, *more))
    (planned,) = plan(dataclasses.replace(session.recording, kernels=(kernel,))).functions
    blocks = {(dict(one.constants)["M"], one.kinds[0]) for one in planned.instances}
    assert blocks == {(m, f"tensordesc<fp16[{m}, 32]>") for m in (16, 32, 64)}
