"""Why launches are handed over to Triton."""

import pytest
import torch

from support.serving import Tensor, param

F32, F16 = torch.float32, torch.float16
X = Tensor(F32)
ODD = Tensor(F32, 0x7000_0004)
BLOCK = param("BLOCK", constexpr=True)
NO_ARGUMENT = "which is not a number, a tensor, a tensor descriptor or None"


class NoAddress:
    dtype = F32


class Number(int):
    pass


@pytest.mark.parametrize(
    ("args", "kwargs", "remedy", "reason"),
    [
        ((1, 2, 3), {}, "call", "it takes 2 arguments, but got 3"),
        ((1,), {}, "call", "b is missing"),
        ((1, 2), {"a": 1}, "call", "a is given twice"),
        ((1, 2**64), {}, "call", "b does not fit into 64 bits"),
        ((1, "2"), {}, "none", f"b is of type str, {NO_ARGUMENT}"),
        ((1, NoAddress()), {}, "none", f"b is of type NoAddress, {NO_ARGUMENT}"),
        ((1, Number(3)), {}, "none", f"b is of type Number, {NO_ARGUMENT}"),
        ((1, 2.0), {}, "record", "b is float, but was built as int"),
        ((X, 2), {}, "record", "a is torch.float32, but was built as int"),
        ((1, None), {}, "record", "b is None, but was built as int"),
        ((1, True), {}, "record", "b is bool, but was built as int"),
        ((1, 2), {"num_warps": 8}, "record", "nothing was built for the options num_warps"),
        ((1, 2**31), {}, "record", "b is an integer of 64 bits (i64), for which nothing was built"),
    ],
)
def test_what_is_not_covered_is_handed_over(serving, args, kwargs, remedy, reason):
    kernel = serving.kernel(param("a"), param("b"))
    kernel.add((), ("int", "int"), {}, [(("i32", "i32"), serving.image())])
    grid = (3,)
    assert kernel.bind(grid)(*args, **kwargs) == "handed over"
    assert serving.handed == [(grid, args, kwargs, reason)]
    assert serving.told[0][1] == remedy
    assert kernel.counts() == {"served": 0, "general": 0, "handed_over": 1}
    assert serving.standin.launches == []


@pytest.mark.parametrize(
    ("types", "arguments", "reason", "told"),
    [
        (("p16", "i32"), (ODD, 3), "x is not aligned to 16 bytes", ""),
        (("p", "i32:16"), (X, 3), "n is not a multiple of 16", "n is 3, not a multiple of 16"),
        (("p", "1"), (X, 3), "n is not 1", "n is 3, not 1"),
        (
            ("p", "i64"),
            (X, 2**63),
            "n is an unsigned integer of 64 bits (u64), for which nothing was built",
            f"n is {2**63}, an unsigned integer of 64 bits (u64), for which nothing was built",
        ),
    ],
)
def test_the_reason_is_what_the_last_variant_does_not_take(serving, types, arguments, reason, told):
    serving.simple(F32, ("p16", "1"), types).bind((1,))(*arguments)
    assert serving.handed[0][-1] == reason
    assert serving.told == [(told or reason, "record")]


def test_what_does_not_fit_the_type_of_a_parameter(serving):
    kernel = serving.kernel(param("n", typed=True))
    kernel.add((), ("int",), {}, [(("u32",), serving.image())])
    kernel.bind((1,))(-1)
    assert serving.handed[0][-1] == "n does not fit into u32"
    assert serving.told == [("n is -1, which does not fit into u32", "record")]


def test_a_mix_of_widths_that_was_not_built_is_named(serving):
    kernel = serving.kernel(param("a"), param("b"))
    pairs = ("i64", "i32"), ("i32", "i64"), ("i32", "i32")
    kernel.add((), ("int", "int"), {}, [(pair, serving.image()) for pair in pairs])
    kernel.bind((1,))(2**40, 2**41)
    reason = "nothing was built for this mix of integers: a as i64, b as i64"
    assert serving.handed[0][-1] == reason


def test_other_constants_dtypes_and_options_are_handed_over(serving):
    kernel = serving.kernel(param("x"), BLOCK, param("EVEN", constexpr=True))
    kernel.add((64, True), (F32,), {"num_warps": 4}, [(("p",), serving.image())])
    launch = kernel.bind((1,))
    launch(X, 32, EVEN=False, num_warps=4)
    launch(Tensor(F16), 64, True, num_warps=4)
    launch(X, 64, True)
    launch(X, 64, True, num_warps=4, num_stages=2)
    assert [told for told, _ in serving.told] == [
        "nothing was built for the constants BLOCK=32, EVEN=False",
        "x is torch.float16, but was built as torch.float32",
        "nothing was built for a launch without options",
        "nothing was built for the options num_warps=4, num_stages=2",
    ]
    assert [reason for *_, reason in serving.handed] == [
        "nothing was built for the constants BLOCK, EVEN",
        "x is torch.float16, but was built as torch.float32",
        "nothing was built for a launch without options",
        "nothing was built for the options num_warps, num_stages",
    ]
    launch(X, 64, True, num_warps=4)
    assert kernel.counts()["served"] == 1


def test_a_kernel_of_which_nothing_was_built_is_handed_over(serving):
    serving.kernel(param("x")).bind((1,))(X)
    assert serving.handed[0][-1] == "nothing was built"
    assert serving.told == [("nothing was built", "build")]
