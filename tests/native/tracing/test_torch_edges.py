"""torch calls at the edges: those that torch refuses are refused, others build."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from opforge import native
from opforge.errors import UnsupportedBody
from support.archs import SM_90
from support.native.torch_bodies import Program, agree
from support.native.torch_table import body_of_one, body_of_two

MATRIX = {dtype: native.tensor("3 4", dtype=dtype) for dtype in ("fp32", "i64", "u8", "i1")}


def refusal(function, dtype):
    with pytest.raises(UnsupportedBody) as refused:
        _ = Program(body_of_one(function), x=MATRIX[dtype]).body.built
    found = refused.value.found
    assert found.startswith("the body raises ")
    assert refused.value.fix == "correct the body, or declare inputs that it takes"
    return found.removeprefix("the body raises ").rpartition(" (")[0]


UNKNOWN = "NotImplementedError: {} is not implemented for torch.{}"


@pytest.mark.parametrize(
    ("function", "dtype", "said"),
    [
        (functional.silu, "i64", UNKNOWN.format("aten.silu", "int64")),
        (torch.relu, "i1", UNKNOWN.format("aten.relu", "bool")),
        (lambda x: x.argmax(0), "i1", UNKNOWN.format("aten.argmax", "bool")),
        (lambda x: x.softmax(-1), "i64", UNKNOWN.format(".softmax()", "int64")),
        (lambda x: x.var(0), "i64", UNKNOWN.format("aten.var.correction", "int64")),
        (lambda x: x.cumsum(0, dtype=torch.bool), "i64", UNKNOWN.format("aten.cumsum", "bool")),
        (lambda x: x**-2, "i64",
         "RuntimeError: Integers to negative integer powers are not allowed."),
        (lambda x: x.clone().fill_(300), "u8",
         "RuntimeError: value cannot be converted to type uint8"),
    ],
)  # fmt: skip
def test_dtypes_and_numbers_that_a_call_does_not_take(function, dtype, said):
    assert said in refusal(function, dtype)


@pytest.mark.parametrize("shape", ["", "n"])
@pytest.mark.parametrize("name", ["gather", "index_select"])
def test_the_element_of_a_tensor_without_dimensions_is_taken(name, shape):
    at = torch.zeros([1] * len(shape), dtype=torch.int64)
    agree(lambda x, i: getattr(x, name)(0, i), torch.tensor(2.5), at)


def test_a_strided_tensor_is_rolled_as_if_it_were_flat():
    agree(lambda x: x.roll(5), torch.randn(6, 4).t(), layout="strided")


@pytest.mark.parametrize(("dtype", "number"), [("i64", 1.5), ("i1", 2)])
def test_a_changed_tensor_must_be_able_to_hold_the_result(dtype, number):
    def scaled(x):
        return x.clone().mul_(number)

    assert "can't be cast to the desired output type" in refusal(scaled, dtype)


def test_elements_that_share_memory_are_not_changed_together():
    def body(x: Tensor) -> Tensor:
        y = x.clone()
        y[:1].expand_as(y).mul_(2)
        return y

    program, x = Program(body, x=native.tensor("m n", dtype="fp32")), torch.randn(3, 4)
    # Where nothing is repeated, that is an ordinary call.
    assert torch.equal(program(x[:1]), x[:1] * 2)
    with pytest.raises(AssertionError, match="more than one element of the written-to tensor"):
        program(x)


@pytest.mark.parametrize("shape", ["5 0", "0 4", "m 0"])
def test_sizes_that_are_declared_as_0_repeat_nothing(shape):
    def body(x: Tensor) -> Tensor:
        return torch.cat([x.clone().mul_(2), x + 1])

    x = torch.ones([int(size.replace("m", "3")) for size in shape.split()])
    found = Program(body, x=native.tensor(shape, dtype="fp32"))(x)
    assert found.shape == body(x).shape


def test_a_tensor_may_be_changed_by_a_part_of_it_that_is_all_of_it():
    def body(x: Tensor) -> Tensor:
        y = x * 2
        y[:1].sub_(y)
        return y

    program, x = Program(body, x=native.tensor("m n", dtype="fp32")), torch.randn(3, 4)
    assert torch.equal(program(x[:1]), body(x[:1]))
    with pytest.raises(AssertionError, match="refer to a single memory location"):
        program(x)


@pytest.mark.parametrize("alpha", [0, 2])
def test_bools_are_added_with_alpha(alpha):
    x, y = torch.tensor([True, False, False]), torch.tensor([False, True, False])
    agree(lambda x, y: torch.add(x, y, alpha=alpha), x, y)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x.masked_fill(y > 0, 0.5),
        lambda x, y: y.masked_fill(x > 0, 2),
        torch.logical_and,
        lambda x, y: torch.logical_xor(y, x),
    ],
)
def test_results_of_tensors_in_another_order_have_the_strides_that_torch_gives_them(function):
    specs = {
        "x": native.tensor("m n", dtype="fp16", layout="strided"),
        "y": native.tensor("n", dtype="i64"),
    }
    body, x, y = body_of_two(function), torch.randn(5, 3).half().t(), torch.tensor([0, 1, 0, 2, 3])
    found, wanted = Program(body, **specs)(x, y), body(x, y)
    assert torch.equal(found, wanted)
    assert found.stride() == wanted.stride()


@pytest.mark.parametrize(
    ("dims", "of_index", "given"),
    [
        ("a b c", "k", [((4, 3, 5), (1, 20, 4)), ((1, 1, 2), (1, 1, 2)), ((2, 3, 1), (1, 2, 7))]),
        ("a b", "k l", [((4, 3), (1, 4)), ((4, 3), (3, 1)), ((1, 3), (2, 5))]),
    ],
)
def test_elements_by_their_positions_lie_as_torch_lays_them(dims, of_index, given):
    body = body_of_two(lambda x, i: x[:, i])
    specs = {
        "x": native.tensor(dims, dtype="fp32", layout="strided"),
        "y": native.tensor(of_index, dtype="i64", layout="strided"),
    }
    program = Program(body, archs=(SM_90,), **specs)
    assert not program.body.built[0].refused
    at = torch.zeros([2, 3][: len(of_index.split())], dtype=torch.int64)
    for shape, strides in given:
        x = torch.randn(200).as_strided(shape, strides)
        for index in (at, at.t().contiguous().t()):
            found, wanted = program(x, index), body(x, index)
            assert torch.equal(found, wanted)
            wide = [d for d, size in enumerate(wanted.shape) if size > 1]
            assert [found.stride(d) for d in wide] == [wanted.stride(d) for d in wide]


@pytest.mark.parametrize("dtype", ["u8", "i8"])
@pytest.mark.parametrize("shift", [torch.bitwise_left_shift, torch.bitwise_right_shift])
def test_integers_are_shifted_beyond_their_bits(shift, dtype):
    x = torch.tensor([200, 127, 1, 200, 127, 1], dtype=torch.uint8)
    by = torch.tensor([7, 7, 7, 8, 120, 0], dtype=torch.uint8)
    x, by = (x, by) if dtype == "u8" else (x.view(torch.int8), by.view(torch.int8))
    agree(shift, x, by)


@pytest.mark.parametrize(("name", "of_bits"), [("sum", "either"), ("prod", "both")])
def test_bits_are_not_summed(name, of_bits):
    # Triton adds bits without carry, its interpreter does not.
    body = body_of_one(lambda x: getattr(x, name)(dtype=torch.bool))
    program = Program(body, x=native.tensor("n", dtype="fp32"))
    texts = [request.fn.src for request, _ in program.body.built[0].requests.values()]
    assert all(f"tl.reduce(t0, 1, {of_bits}, keep_dims=True)" in text for text in texts)
    assert program(torch.ones(4))
    assert program(torch.zeros(4)) == body(torch.zeros(4))


def test_a_range_goes_the_way_of_its_step():
    def body(x: Tensor) -> Tensor:
        return torch.arange(1, x.shape[0], 2, device=x.device)

    program = Program(body, x=native.tensor("n", dtype="fp32"))
    assert torch.equal(program(torch.ones(6)), body(torch.ones(6)))
    assert program(torch.ones(1)).numel() == 0
    with pytest.raises(AssertionError, match="inconsistent with step sign"):
        program(torch.ones(0))


@pytest.mark.parametrize(
    "made",
    [
        lambda x: torch.arange(3),
        lambda x: torch.ones_like(x, device="cpu"),
        lambda x: x.new_empty((3,), device="cpu"),
        lambda x: torch.empty_strided((3,), (1,)),
    ],
    ids=["arange", "like", "new", "strided"],
)
def test_a_new_tensor_on_the_cpu_is_refused_with_what_to_pass(made):
    def body(x: Tensor) -> Tensor:
        return x + made(x).sum()

    with pytest.raises(UnsupportedBody) as refused:
        _ = Program(body, x=MATRIX["fp32"]).body.built
    assert refused.value.found.endswith(": its result is on the CPU; pass device=x.device")


@pytest.mark.parametrize(("dtype", "number"), [("fp32", 1.5), ("i64", 3)], ids=["float", "integer"])
@pytest.mark.parametrize(
    "made",
    [
        lambda x, s: torch.tensor(s, device=x.device),
        lambda x, s: x.new_tensor(s) + torch.tensor(x.shape[0]),
    ],
    ids=["tensor", "new_tensor"],
)
def test_a_declared_number_becomes_a_tensor(made, dtype, number):
    def of_float(x: Tensor, s: float) -> Tensor:
        return x * made(x, s)

    def of_integer(x: Tensor, s: int) -> Tensor:
        return x * made(x, s)

    body = of_float if dtype == "fp32" else of_integer
    x = torch.randn(5).half()
    program = Program(body, x=native.tensor("n", dtype="fp16"), s=native.scalar(dtype))
    assert torch.equal(program(x, number), body(x, number))


@pytest.mark.parametrize("dims", ["m n k", "m 0 k"])
def test_strides_are_at_least_1_where_there_are_no_elements(dims):
    def body(x: Tensor) -> Tensor:
        if x.stride(0) == x.shape[1] * x.stride(1):
            return x + 1
        return torch.zeros([*x.stride(), 2], device=x.device)

    program = Program(body, archs=(SM_90,), x=native.tensor(dims, dtype="fp32"))
    for shape in [(2, 0, 4), (2, 0, 0), (0, 0, 1), (0, 0, 4), (2, 3, 4), (2, 3, 0)]:
        if dims == "m n k" or shape[1] == 0:
            x = torch.ones(shape)
            assert program(x).shape == body(x).shape
