"""The example library: every op, dtype and layout, against torch."""

import ops as examples
import pytest
import torch

from support.native.calling import TOLERANCES, check, described, place
from support.standin.library import OpforgeTensor, Refused

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
HALVES = FLOATS[:2]


def random(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype)


def divisible(kernel):
    return kernel["divisible"]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("hidden", [1, 1000, 1023, 1024, 1025, 2048, 8192])
def test_rms_norm(ops, dtype, hidden):
    x, weight = random(3, hidden, dtype=dtype), random(hidden, dtype=dtype)
    check(ops, "rms_norm", x, weight, 1e-6)
    check(ops, "rms_norm", x, weight, 0.5)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1,), (1024,), (3, 1023), (2, 2, 1025), (2, 3000)])
def test_softmax(ops, dtype, shape):
    check(ops, "softmax", 3 * random(*shape, dtype=dtype))


def test_softmax_of_minus_infinity(ops):
    x = random(4, 1500)
    x[:, :1100] = float("-inf")
    x[0, 0] = 3
    check(ops, "softmax", x)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "sizes", [(1, 1, 1), (64, 32, 64), (65, 33, 63), (3, 100, 130), (5, 0, 7), (16, 16, 16)]
)
def test_gemm(ops, dtype, sizes):
    m, k, n = sizes
    check(ops, "gemm", random(m, k, dtype=dtype) / 8, random(k, n, dtype=dtype), 0.5)


EMPTY = {
    "silu": [(torch.empty(0),), (torch.empty(3, 0, 2),)],
    "add": [(torch.empty(0, 3),) * 2, (torch.empty(3, 0),) * 2],
    "rms_norm": [(torch.empty(0, 8), torch.empty(8), 1e-6)],
    "softmax": [(torch.empty(0),), (torch.empty(0, 5),), (torch.empty(2, 5, 0),)],
    "gemm": [
        (torch.empty(0, 3).half(), torch.empty(3, 4).half(), 1.0),
        (torch.empty(4, 3).half(), torch.empty(3, 0).half(), 1.0),
    ],
}


@pytest.mark.parametrize("name", EMPTY)
def test_nothing_is_launched_for_no_elements(ops, name):
    for inputs in EMPTY[name]:
        expected = getattr(examples, f"{name}_reference")(*inputs)
        assert ops.one(name, *inputs).shape == expected.shape
        # As torch would allocate it: its strides of empty tensors differ.
        given = [place(i) if isinstance(i, torch.Tensor) else i for i in inputs]
        ops.library.call(name, *given, place(expected))
    ops.saw(str, [])


def test_a_kernel_for_multiples_of_16_is_chosen_where_all_are_multiples(ops):
    check(ops, "silu", random(1600))
    check(ops, "silu", random(1601))
    ops.saw(divisible, [[0, 1, 2], [0, 1]])


@pytest.mark.parametrize(("bytes_", "aligned"), [(32, [0, 1, 2]), (6, [])])
def test_a_byte_offset_is_applied_before_alignment_is_judged(ops, bytes_, aligned):
    x, out = place(random(1040).half()), place(torch.empty(1024).half())
    given = OpforgeTensor.of(x[:1024])
    given.byte_offset = bytes_
    ops.library.call("silu", given, out)
    expected = examples.silu_reference(x[bytes_ // 2 : bytes_ // 2 + 1024])
    torch.testing.assert_close(out, expected, **TOLERANCES[torch.float16])
    ops.saw(divisible, [aligned])


@pytest.mark.parametrize(
    ("a_columns", "b_columns", "constants"),
    [
        (False, False, {"a_col", "b_col"}),
        (False, True, {"a_col", "b_row"}),
        (True, False, {"a_row", "b_col"}),
        (True, True, {"a_row", "b_row"}),
    ],
)
def test_dense_rows_and_columns_have_kernels_of_their_own(ops, a_columns, b_columns, constants):
    a = random(32, 64).half().t() if a_columns else random(64, 32).half()
    b = random(16, 32).half().t() if b_columns else random(32, 16).half()
    check(ops, "gemm", a, b, 1.0)
    ops.saw(lambda k: {n for n, v in k["constants"].items() if v == "1"}, [constants])


@pytest.mark.parametrize("size", [2**31 - 1, 2**31, 2**31 + 16, 2**40])
def test_sizes_beyond_32_bits_take_the_kernel_with_64(ops, size):
    ops.only_record()
    ops.library.call("silu", described([size]), described([size], address=1 << 50))
    (kernel,), (launch,) = ops.launched, ops.standin.launches
    assert kernel["types"][-1] == ("i32" if size < 2**31 else "i64")
    assert kernel["divisible"] == ([0, 1, 2] if size % 16 == 0 else [0, 1] if size < 2**31 else [])
    assert launch.grid == (-(-size // 1024), 1, 1)


def test_a_grid_beyond_the_drivers_is_refused(ops):
    ops.only_record()
    size = 2**31 * 1024
    with pytest.raises(Refused) as refused:
        ops.library.call("silu", described([size]), described([size], address=1 << 55))
    assert refused.value.status == "UNCOVERED"
    assert "grid" in refused.value.text
    assert ops.launched == []


def test_rows_longer_than_declared_are_not_covered(ops):
    x, weight = random(2, 8193), random(8193)
    with pytest.raises(Refused) as refused:
        ops.one("rms_norm", x, weight, 1e-6)
    assert "hidden" in refused.value.text
    assert "8192" in refused.value.text


def test_the_outputs_of_a_device_are_on_it(ops):
    (found,) = ops.library.outputs("silu", described([3], dtype=torch.float32))
    assert found.device_id == 0
    other = described([3], dtype=torch.float32)
    other.device_id = 1
    (found,) = ops.library.outputs("silu", other)
    assert found.device_id == 1
