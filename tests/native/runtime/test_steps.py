"""What reaches the driver: arguments of every type, grids, memory, attributes."""

import ctypes
import threading
from dataclasses import replace

import pytest
import torch

from support.native import hand_made
from support.native.hand_made_calls import (
    SPECIAL,
    aligned_offset,
    everything,
    fresh,
    name_of,
)
from support.standin.driver import NVIDIA
from support.standin.library import OpforgeTensor, Refused, numbers


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_half_precision_is_rounded_to_nearest_even(library, standin, dtype):
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    largest = torch.finfo(kind).max
    values = [0.0, -0.0, 1.0, 1 / 3, -2.5, largest, largest * 1.001, 3e38, -3e38, 1e-45, 6e-8]
    values += [2.0**-24, 2.0**-25, 1.5 * 2**-25, 2.0**-14, 65519.0, 65520.0, float("inf")]
    values += torch.randn(40).mul(torch.randn(40).mul(8).exp()).tolist()
    slot = 4 + hand_made.SCALARS.index(dtype)
    seen = []
    standin.execute = lambda launched: seen.append(launched.read(slot, ctypes.c_uint16))
    for value in values:
        library.run("everything", *everything(mode=1, **{f"s_{dtype}": value}))
    # C passes a float, which is what is rounded.
    expected = torch.tensor(values, dtype=torch.float32).to(kind).view(torch.int16).tolist()
    assert seen == [e & 0xFFFF for e in expected]


def test_nan_stays_nan_in_half_precision(library, standin):
    seen = []
    standin.execute = lambda launched: seen.append(launched.read(4, ctypes.c_uint16))
    library.run("everything", *everything(mode=1, s_fp16=float("nan")))
    assert torch.tensor(seen, dtype=torch.uint16).view(torch.float16).isnan().all()


def test_an_output_may_be_missing_by_choice(library, standin):
    out, stats = library.run("everything", *everything(mode=1))
    assert out.shape == (3, 8)
    assert stats is None
    described = library.outputs("everything", *everything(mode=1))
    assert (described[1].bits, described[1].ndim) == (0, 0)
    # Passed on as `_outputs` left it, it counts as left out.
    library.call("everything", *everything(mode=1), torch.empty(3, 8), described[1])
    library.call("everything", *everything(mode=1), torch.empty(3, 8), None)


def test_a_present_output_cannot_be_left_out(library):
    with pytest.raises(Refused, match="demo_everything: stats: is NULL or has no type"):
        library.call("everything", *everything(), torch.empty(3, 8), None)


@pytest.mark.parametrize(
    ("m", "n", "variant"),
    [(4, 4, "aligned"), (1, 16, "aligned"), (1, 15, "plain"), (3, 5, "plain")],
)
def test_divisible_sizes_take_the_specialized_kernel(library, standin, m, n, variant):
    memory = torch.zeros(64, dtype=torch.float32)
    x = memory[:0].set_(memory.untyped_storage(), aligned_offset(memory), (m, n))
    library.call("add", x, torch.zeros_like(x).clone(), fresh((m, n)))
    assert name_of(standin.launches[0]) == f"add_fp32_{variant}"


def test_a_size_beyond_32_bits_takes_the_wide_kernel(library, standin):
    seen = []
    standin.execute = lambda launched: seen.append(launched.read(3, ctypes.c_int64))
    # The stand-in reads no memory for it; the addresses are far apart.
    tensors = []
    for i in range(3):
        tensor = OpforgeTensor.of(torch.zeros(1))
        tensor.data = (i + 1) << 44
        tensor.shape, tensor.strides = numbers([3 * 2**30]), None
        tensors.append(tensor)
    library.call("add", *tensors)
    assert seen == [3 * 2**30]
    assert name_of(standin.launches[0]) == "add_fp32_wide"
    assert standin.launches[0].grid == (3 * 2**30 // 128, 1, 1)


def test_strides_reach_the_kernel_and_ones_are_compiled_in(library, standin):
    seen = []

    def execute(launched):
        count = 8 if name_of(launched) == "matmul_ones" else 10
        seen.append([launched.read(i, ctypes.c_int32) for i in range(3, count)])

    standin.execute = execute
    a, b = fresh((4, 6)), fresh((6, 5))
    library.run("matmul", a, b)
    library.run("matmul", a, fresh((5, 6)).t())
    assert name_of(standin.launches[0]) == "matmul_ones"
    assert seen[0] == [4, 5, 6, 6, 5]
    assert name_of(standin.launches[1]) == "matmul_plain"
    assert seen[1] == [4, 5, 6, 6, 1, 1, 6]
    assert standin.launches[0].grid == (1, 1, 1)


def test_shared_memory_beyond_48_kb_is_asked_for_once(library, standin):
    for _ in range(2):
        library.call("special", torch.zeros(4), SPECIAL["shared"])
    assert [launched.shared for launched in standin.launches] == [100_000] * 2
    # HIP is not asked.
    assert standin.calls.count("cuFuncSetAttribute") == int(standin.vendor is NVIDIA)
    assert standin.launches[0].grid == (4, 3, 2)


def test_clusters_multiply_the_grid(library, standin):
    library.call("special", torch.zeros(4), SPECIAL["cluster"])
    library.call("special", torch.zeros(4), SPECIAL["cluster16"])
    first, second = standin.launches
    assert (first.grid, first.cluster) == ((8, 3, 2), 2)
    assert first.spread == (standin.vendor is NVIDIA)
    assert (second.grid, second.cluster) == ((64, 3, 2), 16)


def test_a_grid_beyond_the_limits_is_refused(library, standin):
    arguments = everything(rows=1000)
    library.run("everything", *arguments)
    x = OpforgeTensor.of(torch.zeros(1))
    x.shape = numbers([2**31])
    with pytest.raises(Refused) as refused:
        library.call("special", x, SPECIAL["scratch"])
    assert refused.value.status == "UNCOVERED"
    assert "scratch_kernel (kernels.py:70): its grid is 2147483648 x 3 x 2" in refused.value.text


ALLOCATE = ctypes.CFUNCTYPE(
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_void_p,
)
RELEASE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
)


@pytest.fixture
def allocator(library):
    """The test's own allocator; it returns `answer`."""

    class Allocator:
        def __init__(self):
            self.memory = fresh((4096,), torch.uint8)
            self.memory = self.memory[-self.memory.data_ptr() % 256 :]
            self.answer = self.memory.data_ptr()
            self.log = []

    state = Allocator()

    def allocate(context, size, alignment, device, stream):
        state.log.append(("allocate", context, size, alignment, device, stream))
        return state.answer

    def release(context, pointer, size, device, stream):
        state.log.append(("release", context, size, device, stream))

    hooks = ALLOCATE(allocate), RELEASE(release)
    library.check(library.function("set_allocator")(*hooks, ctypes.c_void_p(7)))
    yield state
    library.check(library.function("set_allocator")(None, None, None))


def test_workspace_comes_from_the_allocator_that_was_set(library, standin, allocator):
    stream = standin.stream(1)
    standin.reset(devices=2)
    library.run("everything", *everything(), device=1, stream=stream)
    assert allocator.log == [
        ("allocate", 7, 40, 256, 1, stream),
        ("release", 7, 40, 1, stream),
    ]
    assert "cuMemAllocAsync" not in standin.calls


def test_the_torch_adapters_allocator_is_for_its_thread_and_comes_second(library, allocator):
    asked = []
    hooks = ALLOCATE(lambda _, *rest: asked.append(rest) or allocator.answer), RELEASE(lambda *_: 0)
    use = library.function("torch_allocator")
    use.restype = None
    use(*hooks)
    library.run("everything", *everything())
    assert (len(asked), len(allocator.log)) == (0, 2)
    library.check(library.function("set_allocator")(None, None, None))
    library.run("everything", *everything())
    elsewhere = threading.Thread(target=library.run, args=("everything", *everything()))
    elsewhere.start()
    elsewhere.join()
    use(None, None)
    library.run("everything", *everything())
    assert [rest[:2] for rest in asked] == [(40, 256)]


def test_an_allocator_without_memory_is_a_status(library, standin, allocator):
    allocator.answer = None
    with pytest.raises(Refused) as refused:
        library.run("everything", *everything())
    assert refused.value.status == "OUT_OF_MEMORY"
    assert "the allocator returned NULL for 40 bytes of workspace" in refused.value.text
    assert standin.launches == []
    assert [entry[0] for entry in allocator.log] == ["allocate"]


def test_an_allocator_that_ignores_alignment_is_a_status(library, standin, allocator):
    allocator.answer += 16
    with pytest.raises(Refused, match="for 40 bytes aligned to 256"):
        library.run("everything", *everything())
    assert standin.launches == []
    assert [entry[0] for entry in allocator.log] == ["allocate", "release"]


def test_half_an_allocator_is_refused(library):
    hook = ALLOCATE(lambda *_: None)
    with pytest.raises(Refused, match="demo_set_allocator: release is NULL, but allocate is not"):
        library.check(library.function("set_allocator")(hook, None, None))


# `NAME_OP_workspace` tells before a call what the call will ask its allocator for.


@pytest.mark.parametrize("vendor", [NVIDIA], indirect=True)
def test_scratch_memory_is_that_of_the_image_for_the_device(make, standin):
    op, kernels = hand_made.special()
    (one,) = [k for k in kernels if k.key == "special_scratch"]
    smaller = one.images[0]._replace(global_scratch_size=16)
    kernels[kernels.index(one)] = replace(one, images=(smaller, one.images[1]))
    ops, x = make(hand_made.library((op, kernels))), torch.zeros(4)
    for capability, size in (((8, 0), 16), ((9, 0), 64)):
        standin.reset(capability=capability)
        assert ops.workspace("special", x, SPECIAL["scratch"]) == size * 4 * 3 * 2
        ops.unload()


def test_it_touches_no_memory_and_launches_nothing(library, standin):
    arguments = everything()
    given = [OpforgeTensor.of(a) for a in arguments[:3]]
    for tensor in given:
        tensor.data = None
    assert library.workspace("everything", *given, *arguments[3:], None, None) == 40
    out, stats = library.outputs("everything", *arguments)
    assert library.workspace("everything", *given, *arguments[3:], out, stats) == 40
    assert library.workspace("special", torch.zeros(4), SPECIAL["scratch"]) > 0
    allowed = (
        "cuInit", "cuDeviceGet", "cuDriverGetVersion", "cuDevicePrimaryCtxRetain",
        "hipInit", "hipGetDeviceCount", "hipDeviceGet", "hipGetDeviceProperties",
    )  # fmt: skip
    assert [call for call in standin.calls if not call.startswith(allowed)] == []


def test_it_needs_no_driver_where_nothing_depends_on_the_device(library, standin):
    library.workspace("add", fresh((4,)), fresh((4,)), None)
    assert standin.calls == []


def test_a_place_for_the_answer_is_needed(library):
    x = [ctypes.byref(OpforgeTensor.of(fresh((4,)))) for _ in range(2)]
    with pytest.raises(Refused) as refused:
        library.check(library.operator("add", "_workspace")(*x, None, None))
    assert refused.value.status == "INVALID_ARGUMENT"
    assert refused.value.text == "demo_add: bytes: is NULL, expected room for a number"


def test_one_implementation_is_asked(make):
    ops = make(hand_made.library(hand_made.copying()))
    found = ctypes.c_int64(-1)
    ask, x = (
        ops.operator("copy", "_workspace_with"),
        ctypes.byref(OpforgeTensor.of(torch.zeros(2, 4).t())),
    )
    ops.check(ask(1, x, None, ctypes.byref(found)))
    assert found.value == 0
    with pytest.raises(Refused, match=r"demo_copy: implementation 0 \(copy_flat\): x: strides"):
        ops.check(ask(0, x, None, ctypes.byref(found)))
    with pytest.raises(Refused, match=r"implementation: 2, expected 0 \(copy_flat\) or 1 \(copy\)"):
        ops.check(ask(2, x, None, ctypes.byref(found)))
