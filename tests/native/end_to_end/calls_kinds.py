"""An operator per kind of host function, against torch."""

import struct

import pytest
import torch

from support.native.calling import VENDOR, moved_by, place
from support.standin.library import Refused

SINGLE = struct.unpack("f", struct.pack("f", 0.1))[0]
FLOATS = (SINGLE, 0.5, -1.5, 1e-300)
INTS = (-128, -32768, -(2**31), 2**31 + 5, 255, 65535, 2**32 - 1, 2**63 - 1)


@pytest.mark.parametrize(
    "ints", [INTS, (1,) * 8, (16, 160, 1600, 2**40, 16, 16, 16, 16), (-1, -1, -1, -1, 0, 0, 0, 0)]
)
def test_a_kernel_sees_numbers_of_every_width_as_they_were_passed(kinds, ints):
    floats, seen = kinds("scalars", torch.empty(3), *FLOATS, *ints)
    assert floats.tolist() == list(FLOATS)
    assert seen.tolist() == list(ints)


def test_a_number_beyond_63_bits_is_passed_as_it_is(kinds):
    _, seen = kinds("scalars", torch.empty(3), *FLOATS, *INTS[:-1], 2**64 - 1)
    assert seen.tolist()[-1] == -1


def test_halves_are_rounded_from_the_floats_that_c_passes(kinds):
    floats, _ = kinds("scalars", torch.empty(3), 0.1, 0.1, 0.1, 0.1, *INTS)
    rounded = [torch.tensor(0.1).to(t).item() for t in (torch.float16, torch.bfloat16)]
    assert floats.tolist() == [SINGLE, *rounded, 0.1]


CHOICES = {"relu": 0, None: 1}


@pytest.mark.parametrize("act", CHOICES)
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_choices_and_a_missing_tensor(kinds, act, large, with_bias):
    x, bias = torch.randn(100), torch.randn(100) if with_bias else None
    found = kinds.one("choose", x, bias, CHOICES[act], int(large))
    expected = x + bias if with_bias else x
    torch.testing.assert_close(found, expected.relu() if act == "relu" else expected)
    kinds.saw(lambda k: k["constants"]["ACT"], [repr(act)])
    kinds.saw(lambda k: k["constants"]["BLOCK"], ["64" if large else "32"])
    kinds.saw(lambda k: len(k["types"]), [4 if with_bias else 3])


def test_a_value_that_is_not_a_choice_is_refused(kinds):
    with pytest.raises(Refused) as refused:
        kinds.one("choose", torch.randn(4), None, 2, 0)
    assert refused.value.status == "INVALID_ARGUMENT"
    assert "act" in refused.value.text


@pytest.mark.parametrize("strides", [(5, 1), (1, 3), (20, 2), (1, 7)])
def test_an_output_has_the_strides_of_the_caller(kinds, strides):
    x, out = torch.randn(3, 5), place(torch.empty_strided((3, 5), strides))
    kinds.library.call("negated", place(x), out)
    torch.testing.assert_close(out.cpu(), -x)


def test_an_input_is_changed_in_place(kinds):
    x = torch.randn(200)
    before = x.clone()
    assert kinds("scale_", x, -2.0) == []
    torch.testing.assert_close(x, before * -2)


@pytest.mark.parametrize("cols", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("indices", [False, True])
def test_two_outputs_of_which_one_may_be_missing(kinds, rows, cols, indices):
    x = torch.randn(rows, cols)
    low, at = kinds("extremes", x, int(indices))
    expected = x.min(1)
    torch.testing.assert_close(low, expected.values)
    assert at is None if not indices else torch.equal(at, expected.indices)


def test_each_power_of_two_has_its_kernel(kinds):
    for cols in (1, 2, 3, 4):
        kinds("extremes", torch.randn(3, cols), 0)
    kinds.saw(lambda k: k["constants"]["BLOCK"], ["1", "2", "4", "4"])


def test_workspace_is_filled_and_freed(kinds):
    x = torch.randint(0, 16, (300,), dtype=torch.int32)
    found = kinds.one("running", x)
    expected = (torch.bincount(x, minlength=16) + 100).cumsum(0)
    assert torch.equal(found.long(), expected)
    again = kinds.one("running", x)
    assert torch.equal(found, again)


def test_workspace_is_filled_where_there_is_nothing_to_count(kinds):
    found = kinds.one("running", torch.empty(0, dtype=torch.int32))
    assert found.tolist() == [100 * (i + 1) for i in range(16)]


@pytest.mark.parametrize("n", [1, 31, 32, 33, 64, 100])
def test_the_first_configuration_is_taken_and_heuristics_decide_by_size(kinds, n):
    x = torch.randn(n)
    out, blocks = kinds("square", x)
    torch.testing.assert_close(out, x * x)
    assert blocks.item() == -(-n // 32) * 10 + (n % 32 == 0)


@pytest.mark.parametrize("rounding", [0, 1])
@pytest.mark.parametrize("with_shift", [False, True])
def test_options_in_a_dataclass(kinds, rounding, with_shift):
    x, shift = torch.randn(3, 50), torch.randn(50)
    found = kinds.one("affine", x, 2.5, shift if with_shift else None, rounding)
    expected = x * 2.5 + (shift if with_shift else 0)
    torch.testing.assert_close(found, expected.ceil() if rounding else expected.floor())


def test_a_grid_of_three_dimensions(kinds):
    found = kinds.one("where", torch.empty(3, 4, 5))
    i, j, k = torch.meshgrid(torch.arange(3), torch.arange(4), torch.arange(5), indexing="ij")
    assert torch.equal(found.long(), i * 10000 + j * 100 + k)
    assert kinds.one("where", torch.empty(3, 0, 5)).shape == (3, 0, 5)


@pytest.mark.parametrize("count", [3, 132])
def test_as_many_programs_as_the_gpu_has_multiprocessors(kinds, count):
    if kinds.standin is not None:
        # Asked once per device, when the library first sees it.
        kinds.library.unload()
        kinds.standin.set(0, 16, count)
    x = torch.arange(1000, dtype=torch.int32)
    assert torch.equal(kinds.one("persistent", x), x + 1)
    if kinds.standin is not None:
        assert kinds.standin.launches[0].grid == (count, 1, 1)


HALVED = (torch.int8, torch.uint8, torch.int16, torch.float64, torch.float8_e5m2, torch.bool)


@pytest.mark.parametrize("dtype", HALVED)
@pytest.mark.parametrize(("rows", "width"), [(3, 8), (2, 9), (1, 128), (2, 1), (0, 4)])
def test_views_of_an_input_are_launched_on(kinds, dtype, rows, width):
    x = torch.randint(0, 2, (rows, width)).to(dtype)
    left, right = kinds("halves", moved_by(x.view(torch.uint8), 0).view(dtype))
    half = width // 2
    assert left.dtype == right.dtype == dtype
    assert torch.equal(left.float(), x[:, :half].float())
    assert torch.equal(right.float(), x[:, half : 2 * half].float())


def test_a_written_input_that_overlaps_itself_is_refused(kinds):
    x = place(torch.randn(1)).expand(8)
    with pytest.raises(Refused) as refused:
        kinds.library.call("scale_", x, 2.0)
    assert refused.value.status == "INVALID_ARGUMENT"
    assert "x" in refused.value.text


@pytest.mark.parametrize("shape", [(3, 17), (1, 1), (0, 5), (7, 33)])
def test_torch_calls_around_a_launch(kinds, shape):
    x = torch.randn(shape).half()
    centred = (x.float() - x.float().mean(-1, keepdim=True)) * 0.5
    soft, both = kinds("mixed", x, 0.5)
    torch.testing.assert_close(soft, torch.softmax(centred, -1).half())
    assert torch.equal(both, torch.cat([x, x.flip(0)], 1))


def test_an_index_out_of_range_fails_what_comes_after_the_call(kinds):
    x, at = torch.randn(5, 7), torch.tensor([4, 0, 4])
    largest, found = kinds("picked", x, at)
    assert torch.equal(largest, x.amax(-1))
    assert torch.equal(found, x[at])
    if kinds.standin is None:
        pytest.skip("the process could not use the GPU any more")
    at[1] = 5
    # The launch is accepted; the GPU stops when it runs. With a current context, as under torch, it
    # is the last call of the driver.
    kinds.standin.set_current(0)
    kinds.library.run("picked", x, at)
    with pytest.raises(Refused) as refused:
        kinds.library.run("picked", x, at)
    assert refused.value.status == "CUDA_ERROR"
    assert f"{VENDOR.errors[719]} (719)" in refused.value.text
    kinds.standin.fail(0)


def test_an_extreme_of_nothing_is_refused_as_torch_refuses_it(kinds):
    with pytest.raises(IndexError):
        torch.empty(5, 0).amax(-1)
    with pytest.raises(Refused) as refused:
        kinds("picked", torch.empty(5, 0), torch.tensor([0]))
    assert refused.value.status == "UNCOVERED"
    raised = "the body raises IndexError: amax(): a dimension without elements has no extreme"
    assert raised in refused.value.text
    assert kinds.launches == []


@pytest.mark.parametrize("n", [0, 5, 1000])
def test_the_backward_of_an_operator(kinds, n):
    x, grad = torch.randn(n, requires_grad=True), torch.randn(n)
    out = x * torch.sigmoid(1.5 * x)
    out.backward(grad)
    found = kinds.one("swish_backward", grad, x.detach(), 1.5, out.detach())
    torch.testing.assert_close(found, x.grad)


def test_a_gradient_of_another_size_is_refused(kinds):
    with pytest.raises(Refused) as refused:
        kinds.one("swish_backward", torch.randn(4), torch.randn(5), 1.5, torch.randn(5))
    assert refused.value.status == "INVALID_ARGUMENT"
    assert refused.value.text == (
        "kinds_swish_backward: x: size 5 in dimension 0, expected 4 as in grad_out (n)"
    )
