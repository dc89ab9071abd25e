"""Tensor descriptors: encoded by the library, and kept for later calls with the same tensors."""

import threading

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from opforge import native
from support.native import hopper_ops
from support.standin.driver import NVIDIA
from support.standin.interpreter import Interpreter
from support.standin.library import NativeLibrary, Refused
from support.standin.tensor_maps import Map

KERNELS = {
    name: InterpretedFunction(getattr(hopper_ops, name).fn)
    for name in ("twice_kernel", "edges_kernel", "plain_kernel")
} | {"product_kernel": InterpretedFunction(hopper_ops.product_kernel.fn.fn)}
ENCODE = "cuTensorMapEncodeTiled"


@pytest.fixture
def vendor():
    """AMD's GPUs have no tensor maps."""
    return NVIDIA


@pytest.fixture(scope="module")
def built(tmp_path_factory, pool):
    folder = tmp_path_factory.mktemp("maps")
    names = ("twice", "fourfold", "edges", "product", "anywhere")
    every = tuple(getattr(hopper_ops, name) for name in names)
    native.build(every, folder, name="hopper", archs=["sm_80", "sm_90"], executor=pool)
    return folder


@pytest.fixture(params=[(9, 0), (8, 0)], ids=["maps", "no maps"])
def capability(request):
    return request.param


@pytest.fixture
def library(built, standin, capability):
    standin.reset(capability=capability)
    made = NativeLibrary(built, "hopper")
    standin.execute = Interpreter(made.manifest, KERNELS)
    yield made
    assert not standin.errors, standin.errors[0]
    made.unload()


newer = pytest.mark.parametrize("capability", [(9, 0)])


def one(found):
    (output,) = found
    return output


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("size", [(64, 32), (1, 16), (70, 40)])
def test_a_kernel_reads_and_writes_by_descriptors(library, dtype, size):
    x = torch.randn(size).to(dtype)
    assert torch.equal(one(library.run("twice", x)), x * 2)


def test_the_body_may_ask_whether_an_address_is_aligned(library, standin):
    held = torch.randn(65 * 32).half()
    for start, kernel in ((0, "twice_kernel"), (8, "twice_kernel"), (1, "plain_kernel")):
        x = held[start : start + 64 * 32].view(64, 32)
        assert torch.equal(one(library.run("anywhere", x)), x * 2)
        assert standin.launches[-1].function == kernel


def test_launches_of_a_graph_get_the_maps_of_each_call(library, standin):
    for turn in range(20):
        x = torch.randn(64 + turn, 32).half()
        assert torch.equal(one(library.run("fourfold", x)), x * 4)
    assert [launched.in_graph for launched in standin.launches[::2]] == [False] * 16 + [True] * 4


def test_what_lies_outside_is_nan(library):
    x = torch.randn(2, 3, 20)
    wanted = torch.full((2, 4, 32), torch.nan)
    wanted[:, :3, :20] = x + 20 + 20
    found = one(library.run("edges", x)).view(2, 4, 32)
    torch.testing.assert_close(found, wanted, equal_nan=True)


def test_a_hook_sets_the_blocks(library):
    a, b = torch.randn(72, 40).half(), torch.randn(40, 24).half()
    found = one(library.run("product", a, b))
    torch.testing.assert_close(found, a @ b, rtol=1e-2, atol=1e-2)


@newer
def test_the_map_has_what_triton_compiled_for(library, standin):
    seen = []
    standin.execute = lambda launched: seen.append([launched.read(index, Map) for index in (0, 5)])
    x = torch.zeros(70, 40, dtype=torch.float16)
    library.run("twice", x)
    ((given, made),) = seen
    assert (given.address, given.rank, given.element) == (x.data_ptr(), 2, 6)
    assert ([*given.extents[:2]], given.between[0]) == ([40, 70], 80)
    # 32 halves are 64 bytes, which Triton swizzles as such.
    assert ([*given.box[:2]], given.swizzle, given.fill) == ([32, 64], 2, 0)
    assert (given.interleave, given.promotion) == (0, 2)
    assert made.address != given.address


@newer
def test_maps_are_kept(library, standin):
    # No other test has as many rows: its maps may still be kept.
    x, out = torch.randn(61, 32).half(), torch.empty(61, 32).half()
    for _ in range(3):
        library.call("twice", x, out)
    assert standin.calls.count(ENCODE) == 2
    library.call("twice", x[:31], out[:31])
    assert standin.calls.count(ENCODE) == 4
    assert torch.equal(out, x * 2)
    # Each thread keeps its own.
    thread = threading.Thread(target=library.call, args=("twice", x, out))
    thread.start()
    thread.join()
    assert standin.calls.count(ENCODE) == 6


@newer
def test_as_many_maps_are_kept_as_there_is_room_for(library, standin):
    """Whatever their addresses are: two tensors must not drive each other out."""
    pairs = [(torch.randn(59, 32).half(), torch.empty(59, 32).half()) for _ in range(8)]
    for _ in range(3):
        for x, out in pairs:
            library.call("twice", x, out)
    assert standin.calls.count(ENCODE) == 16
    assert all(torch.equal(out, x * 2) for x, out in pairs)


@newer
def test_a_driver_that_fails_is_told_about_with_the_tensor(library, standin):
    x = torch.randn(128, 64).half()
    standin.fail(1, name=ENCODE)
    with pytest.raises(Refused) as caught:
        library.run("twice", x)
    assert caught.value.status == "CUDA_ERROR"
    said = f"{ENCODE}: CUDA_ERROR_INVALID_VALUE (1): "
    assert said in caught.value.text
    assert (
        "x (x_desc of the kernel), for twice_kernel, support/native/hopper_ops.py:"
        in caught.value.text
    )
    assert f": at 0x{x.data_ptr():x}, sizes [128, 64], strides [64, 1])" in caught.value.text
    # What failed is not kept.
    assert torch.equal(one(library.run("twice", x)), x * 2)


def test_an_address_that_is_not_aligned_is_refused(library):
    x = torch.randn(1000).half()[1:129].view(8, 16)
    with pytest.raises(Refused) as caught:
        library.run("twice", x)
    where = f"x (x_desc of the kernel) is at 0x{x.data_ptr():x}"
    assert f"{where}; a tensor descriptor needs a multiple of 16" in caught.value.text


@pytest.mark.parametrize(("size", "rule"), [
    ((8, 12), "strides must be 16-byte aligned"), ((0, 16), "shape must be positive"),
])  # fmt: skip
def test_sizes_that_a_descriptor_cannot_have_are_refused_with_the_tensor(library, size, rule):
    with pytest.raises(Refused) as caught:
        library.run("twice", torch.zeros(size, dtype=torch.float16))
    assert f"AssertionError: {rule}, of a tensor descriptor of x" in caught.value.text
