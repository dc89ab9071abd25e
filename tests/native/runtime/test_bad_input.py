"""Bad arguments: a status, a text that names the argument, and never a launch."""

import ctypes

import pytest
import torch

from support.native import hand_made
from support.native.hand_made_calls import SPECIAL, everything
from support.standin.driver import NVIDIA
from support.standin.library import OpforgeTensor, Refused, numbers


@pytest.fixture
def refuses(library, standin):
    def check(op, *arguments, text, status="INVALID_ARGUMENT", **options):
        with pytest.raises(Refused) as refused:
            library.call(op, *arguments, **options)
        assert refused.value.text == f"demo_{op}: {text}"
        assert refused.value.status == status
        assert standin.launches == []

    return check


def changed(shape=(4,), dtype=torch.float32, **fields):
    tensor = OpforgeTensor.of(torch.zeros(shape, dtype=dtype))
    for name, value in fields.items():
        setattr(tensor, name, value)
    return tensor


ZEROS = torch.zeros(4)
MEMORY = "CUDA memory (2, or 13 if managed) or ROCm memory (10)"
TENSORS = {
    "no tensor": (None, "is NULL"),
    "no data": (changed(data=None), "its data is NULL, but it has 4 elements"),
    "no shape": (changed(shape_=1), "its shape is NULL"),
    "too many dimensions": (changed(ndim=9), "has 9 dimensions, expected 0 to 8"),
    "a negative rank": (changed(ndim=-1), "has -1 dimensions, expected 0 to 8"),
    "another rank": (changed((2, 2, 1)), "has 3 dimensions, expected 1 or 2"),
    "another type": (changed(dtype=torch.float64), "type fp64, expected fp16 or fp32"),
    "an unknown type": (changed(code=5), "type DLPack type 5 of 32 bits, expected fp16 or fp32"),
    "lanes": (changed(lanes=4), "its type has 4 lanes, expected 1"),
    "host memory": (changed(device_type=1), "is on the CPU; the library runs on CUDA or ROCm"),
    "pinned memory": (changed(device_type=3), f"is on DLPack device type 3, expected {MEMORY}"),
    "ROCm's": (changed(device_type=11), f"is on DLPack device type 11, expected {MEMORY}"),
    "data between elements": (
        changed(data=0x1002),
        "its data begins at 0x1002, not at a multiple of its element size, 4",
    ),
    "an offset beyond memory": (
        changed(byte_offset=2**64 - 1),
        "byte_offset 18446744073709551615 leaves the address space",
    ),
}
TENSORS["no shape"][0].shape = None


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_that_is_none(refuses, name, which):
    tensor, text = TENSORS[name]
    arguments = [ZEROS, ZEROS, torch.zeros(4)]
    arguments[which] = tensor and tensor.placed()
    refuses("add", *arguments, text=f"{'xy'[which]}: {text}")


@pytest.mark.parametrize(
    ("sizes", "strides", "text"),
    [
        ([-4], None, "shape [-4] has a negative size"),
        ([2, -1], [1, 1], "shape [2, -1] with strides [1, 1] has a negative size"),
        ([2, 2], [-2, 1], "shape [2, 2] with strides [-2, 1] has a negative stride"),
        ([2**32, 2**32], None, "shape [4294967296, 4294967296] does not fit into 64 bits"),
        ([2**62], None, "shape [4611686018427387904] does not fit into 64 bits"),
        (
            [2, 2],
            [2**62, 1],
            "shape [2, 2] with strides [4611686018427387904, 1] does not fit into 64 bits",
        ),
    ],
)
def test_sizes_and_strides_that_no_tensor_has(refuses, sizes, strides, text):
    x = changed()
    x.ndim, x.shape = len(sizes), numbers(sizes)
    x.strides = numbers(strides) if strides else None
    refuses("add", x, x, torch.zeros(4), text=f"x: {text}")


@pytest.mark.parametrize("vendor", [NVIDIA], indirect=True)
def test_a_managed_tensor_is_accepted(library):
    library.call("add", changed(device_type=13), changed(), torch.zeros(4))


def test_tensors_of_both_vendors_are_refused(refuses):
    text = "y: is on ROCm device 0, but x is on CUDA device 0; a call runs on one"
    refuses("add", changed(device_type=2), changed(device_type=10), ZEROS, text=text)
    text = "out: is on CUDA device 0, but x is on ROCm device 0; a call runs on one"
    x = changed(device_type=10)
    refuses("add", x, x, changed(device_type=13), text=text)


def test_a_library_for_one_vendor_names_its_memory(make, standin):
    ops = make(hand_made.library(), for_both=False)
    for kind, text in (
        (1, "is on the CPU; the library runs on CUDA"),
        (3, "is on DLPack device type 3, expected CUDA memory (2, or 13 if managed)"),
    ):
        with pytest.raises(Refused) as refused:
            ops.call("add", changed(device_type=kind), ZEROS, ZEROS)
        assert refused.value.text == f"demo_add: x: {text}"


def test_sizes_of_the_same_name_differ(refuses):
    x = torch.zeros(4, 3)
    text = "y: size 5 in dimension 1, expected 3 as in x (n)"
    refuses("add", x, torch.zeros(4, 5), x, text=text)
    a, b = torch.zeros(4, 3), torch.zeros(5, 2)
    text = "b: size 5 in dimension 0, expected 3 as in a (k)"
    refuses("matmul", a, b, torch.zeros(4, 2), text=text)


def test_a_size_outside_of_its_bounds(refuses):
    a, b = torch.zeros(4, 5000), torch.zeros(5000, 4)
    text = "a: k is 5000, expected 1 to 4096"
    refuses("matmul", a, b, torch.zeros(4, 4), text=text)
    a, b = torch.zeros(4, 0), torch.zeros(0, 4)
    refuses("matmul", a, b, torch.zeros(4, 4), text="a: k is 0, expected 1 to 4096")
    given = everything(rows=1)
    given[0], given[2] = torch.zeros(0, 8), torch.zeros(0)
    refuses("everything", *given, None, None, text="x: rows is 0, expected at least 1")


def test_a_scalar_outside_of_its_bounds(refuses):
    out = torch.empty(3, 8), torch.empty(3, dtype=torch.float64)
    text = "s_i32: s_i32 is 6, expected -5 to 5"
    refuses("everything", *everything(s_i32=6), *out, text=text)
    text = "s_u8: s_u8 is 4, expected 0 or 3 or 200"
    refuses("everything", *everything(s_u8=4), *out, text=text)


def test_a_fixed_size_that_differs(refuses):
    arguments = everything()
    arguments[0] = torch.zeros(3, 9)
    text = "x: size 9 in dimension 1, expected 8"
    refuses("everything", *arguments, None, None, text=text)


def test_strides_where_contiguous_tensors_are_required(refuses, library):
    x = torch.zeros(3, 4).t()
    text = "x: strides [1, 4] for shape [4, 3], expected compact strides"
    refuses("add", x, torch.zeros(4, 3), torch.zeros(4, 3), text=text)
    # A dimension of one element may have any stride.
    library.call("add", torch.zeros(9, 5)[:1], torch.zeros(1, 5), torch.zeros(1, 5))


def test_the_output_has_another_shape_type_or_stride(refuses):
    expected = "expected fp32 [4, 3] with strides [3, 1]"
    x = torch.zeros(4, 3)
    for out, shown in (
        (torch.zeros(3, 4), "fp32 [3, 4]"),
        (torch.zeros(12), "fp32 [12]"),
        (torch.zeros(4, 3).half(), "fp16 [4, 3]"),
        (torch.zeros(3, 4).t(), "fp32 [4, 3] strides [1, 4]"),
    ):
        refuses("add", x, x.clone(), out, text=f"out: is {shown}, {expected}")
    refuses("add", x, x.clone(), None, text="out: is NULL or has no type")
    out = changed((4, 3), device_type=1)
    text = "out: is on the CPU; the library runs on CUDA or ROCm"
    refuses("add", x, x.clone(), out, text=text)


def test_outputs_that_nobody_could_read_are_refused(library):
    describe, x = library.operator("add", "_outputs"), changed()
    with pytest.raises(Refused) as refused:
        library.check(describe(ctypes.byref(x), ctypes.byref(x), None))
    assert refused.value.status == "INVALID_ARGUMENT"
    assert refused.value.text == "demo_add: out: is NULL, expected a tensor to fill in"


def test_tensors_of_two_devices(refuses, standin):
    standin.reset(devices=2)
    text = "y: is on device 1, but x is on device 0"
    refuses("add", ZEROS, changed(device_id=1), torch.zeros(4), text=text)
    text = "out: is on device 1, but x is on device 0"
    refuses("add", ZEROS, ZEROS, changed(device_id=1), text=text)


@pytest.mark.parametrize("device", [-1, 3, 1000])
def test_a_device_that_does_not_exist(refuses, device):
    tensors = [changed(device_id=device) for _ in range(3)]
    text = f"device {device} does not exist; the driver has 1"
    refuses("add", *tensors, text=text)


def test_an_output_that_overlaps_an_input(refuses, library):
    memory = torch.zeros(16)
    text = "out: overlaps x in memory but is written to"
    refuses("add", memory[:4], memory[8:12], memory[3:7], text=text)
    refuses("add", memory[8:12], memory[:4], memory[:4], text=text.replace("x", "y"))
    # Neighbours do not, and inputs may.
    library.call("add", memory[:4], memory[2:6], memory[6:10])


def test_a_written_input_that_overlaps(refuses):
    arguments = everything(rows=1)
    arguments[1] = torch.zeros(8)
    arguments[2] = arguments[1][3:4]
    out = torch.empty(1, 8), torch.empty(1, dtype=torch.float64)
    refuses("everything", *arguments, *out, text="state: overlaps bias in memory but is written to")


def test_a_written_tensor_that_repeats_itself(refuses):
    x = OpforgeTensor.of(torch.zeros(1).expand(4))
    text = "x: shape [4] with strides [0] overlaps itself but is written to"
    refuses("special", x, SPECIAL["scratch"], text=text)


@pytest.mark.parametrize("mode", [-1, 2])
def test_a_choice_that_is_not_a_member(refuses, mode):
    out = torch.empty(3, 8), torch.empty(3, dtype=torch.float64)
    text = f"mode: {mode} is not a value of the enum, which has 2"
    refuses("everything", *everything(mode=mode), *out, text=text)


def test_the_text_of_a_failure_stays_until_the_next(library):
    with pytest.raises(Refused):
        library.call("add", None, None, None)
    library.call("add", ZEROS, ZEROS, torch.zeros(4))
    assert library.function("last_error")() == b"demo_add: x: is NULL"


def test_workspace_whose_size_overflows_is_refused(make, standin):
    n = hand_made.Var("n")
    steps = (hand_made.Allocate("workspace", hand_made.make("*", n, 2**62)),)
    case = hand_made.Case(
        hand_made.tensors("i8", (n,), "x"), paths=(hand_made.Path((), (), steps),)
    )
    op = hand_made.Op("large", "", "", (hand_made.TensorParam("x", True),), (), (case,))
    library = make(hand_made.library((op, [])))
    with pytest.raises(Refused) as refused:
        library.call("large", torch.zeros(2, dtype=torch.int8))
    assert refused.value.status == "INVALID_ARGUMENT"
    assert refused.value.text == "demo_large: step 1: sizes of workspace do not fit into 64 bits"
    allocate = standin.vendor.call("cuMemAllocAsync")
    with pytest.raises(Refused, match=rf"^OUT_OF_MEMORY: demo_large: {allocate}: "):
        library.call("large", torch.zeros(1, dtype=torch.int8))
    assert standin.alive["allocations"] == 0


@pytest.mark.parametrize(
    ("m", "n"), [(2**40, 2**40), (2**32, 2**31), (2**31, 2**30), (2**60, 2**60)]
)
def test_outputs_of_sizes_that_no_memory_has(library, m, n):
    a, b = changed(), changed()
    a.ndim, a.shape, a.strides = 2, numbers([m, 1]), numbers([1, 1])
    b.ndim, b.shape, b.strides = 2, numbers([1, n]), numbers([1, 1])
    with pytest.raises(Refused) as refused:
        library.outputs("matmul", a, b)
    assert refused.value.status == "INVALID_ARGUMENT"
    said = f"demo_matmul: out: would have shape [{m}, {n}], which does not fit into 64 bits"
    assert refused.value.text == said
