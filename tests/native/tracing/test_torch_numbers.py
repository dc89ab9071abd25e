"""Numbers in torch calls: in range, at its ends and beyond, as torch takes and refuses them.

The reference is eager torch on the CPU, except where a GPU's kernels, which libraries follow, are
known to differ: these are named here.
"""

import math

import pytest
import torch
from torch import Tensor

from opforge import native
from opforge.errors import UnsupportedBody
from support.archs import SM_90
from support.native.torch_bodies import Program
from support.native.torch_numbers import CALLS, FOR_ALL_DTYPES, inputs, numbers, program
from support.native.torch_table import body_of_one

# Where GPUs convert a number of halves to float32, and CPUs to the half.
WIDER = {
    "add_alpha", "clamp", "clamp_low", "clamp_max", "clamp_min", "rsub_alpha", "sub_alpha",
}  # fmt: skip
# GPUs divide by 0, to which 256 wraps around as u8, without an error.
DIVISIONS = {"div_trunc", "floor_divide", "fmod", "remainder"}
# What no library makes, though torch does: a bool to the power of True, a bool that is shifted.
ALSO_REFUSED = {
    ("pow", "i1", True), *((call, "i1", n) for call in ("lshift", "rshift") for n in (0, 2, -1))
}  # fmt: skip
# Where CPUs convert without a check.
UNCHECKED = {"pow": ("fp32", "fp64"), "where": ("fp16", "bf16"), "where_other": ("fp16", "bf16")}


def refusal(call, dtype, number):
    with pytest.raises(UnsupportedBody) as refused:
        _ = program(call, dtype, number).body.built
    return refused.value.found


def eager(call, x, number):
    """What torch returns; None if it raises."""
    try:
        return CALLS[call](x.clone(), number)
    except (RuntimeError, TypeError):
        return None


def is_wider(call, dtype, number):
    """Whether a GPU takes a number that a CPU does not."""
    by_zero = call in DIVISIONS and float(torch.tensor(number).to(inputs(dtype).dtype)) == 0
    halves = call in WIDER and dtype in {"fp16", "bf16"} and abs(number) < torch.finfo().max
    return by_zero or halves


def is_narrower(call, dtype, number):
    return dtype in UNCHECKED.get(call, ()) and (
        torch.finfo(inputs(dtype).dtype).max < abs(number) < math.inf
    )


@pytest.mark.parametrize("call", CALLS)
def test_a_number_is_taken_or_refused_as_torch_does(call):
    for dtype in ("i8", "u8", "i32", "i1", "fp16", "fp32"):
        x, wanted = inputs(dtype), {}
        for number in numbers(dtype):
            found = eager(call, x, number)
            if (call, dtype) == ("assigned", "fp16") and abs(number) > torch.finfo(x.dtype).max:
                continue  # infinite until torch 2.15, refused from then on
            if is_narrower(call, dtype, number):
                assert "overflow" in refusal(call, dtype, number)
            elif found is not None and (call, dtype, number) not in ALSO_REFUSED:
                wanted[type(number), number] = found
            elif found is None and not is_wider(call, dtype, number):
                refusal(call, dtype, number)
        if wanted:
            taken = [number for _, number in wanted]
            found = program(call, dtype, *taken)(x)
            for number, one, other in zip(
                taken, found if len(taken) > 1 else [found], wanted.values(), strict=True
            ):
                compare(one, other, f"{dtype} {number}")


def compare(found, wanted, what):
    assert found.dtype is wanted.dtype, what
    # Beyond, a GPU rounds elsewhere.
    near = {"rtol": 1e-2, "atol": 1e-2} if wanted.dtype.is_floating_point else {}
    finite = wanted.isfinite() & (wanted.abs() < 1e4) if near else ...
    torch.testing.assert_close(found[finite], wanted[finite], msg=what, **near)


RUN_TIME = {
    "add_alpha": -128, "addcmul": -128, "fill": -128, "full": -128,
    "masked_fill": -128, "pow": 0, "sub_alpha": -127, "where": -128, "where_other": -128,
}  # fmt: skip


@pytest.mark.parametrize("call", RUN_TIME)
def test_a_number_of_a_call_is_refused_by_the_call(call):
    def body(x: Tensor, k: int) -> Tensor:
        return CALLS[call](x, k)

    least = RUN_TIME[call]
    most = 128 if call == "sub_alpha" else 127
    specs = {"x": native.tensor("n", dtype="i8"), "k": native.scalar("i64")}
    made, x = Program(body, archs=(SM_90,), **specs), inputs("i8")
    for number in (least, 1, most):
        compare(made(x, number), CALLS[call](x, number), number)
    for number in (least - 1, most + 1, 2**40):
        assert eager(call, x, number) is None
        with pytest.raises(AssertionError, match=r"overflow|negative integer powers"):
            made(x, number)


@pytest.mark.parametrize("number", [-300, -129, 3, 128, 300])
@pytest.mark.parametrize("call", ["clamp", "clamp_low", "clamp_max"])
def test_an_end_of_a_call_is_taken_or_refused_as_torch_does(call, number):
    def body(x: Tensor, k: int) -> Tensor:
        return CALLS[call](x, k)

    specs = {"x": native.tensor("n", dtype="i8"), "k": native.scalar("i64")}
    made, x = Program(body, archs=(SM_90,), **specs), inputs("i8")
    wanted = eager(call, x, number)
    if wanted is not None:
        compare(made(x, number), wanted, number)
    else:
        with pytest.raises(AssertionError, match="overflow"):
            made(x, number)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_a_float_of_a_call_is_refused_where_it_would_become_infinite(dtype):
    def body(x: Tensor, k: float) -> Tensor:
        return x.masked_fill(x > 0, k)

    specs = {"x": native.tensor("n", dtype=dtype), "k": native.scalar("fp64")}
    made, x = Program(body, archs=(SM_90,), **specs), inputs(dtype)
    most = torch.finfo(x.dtype).max
    for number in (-1.5, most, -math.inf, math.nan):
        torch.testing.assert_close(made(x, number), body(x, number), equal_nan=True)
    for number in (most * 1.01, -most * 2):
        assert eager("masked_fill", x, number) is None
        with pytest.raises(AssertionError, match="overflow"):
            made(x, number)


@pytest.mark.parametrize("dtype", ["u16", "u64", "fp8e5"])
def test_what_cuda_torch_has_no_kernel_for_is_refused(dtype):
    x = inputs(dtype)
    for call, function in CALLS.items():
        if call in FOR_ALL_DTYPES or (dtype == "fp8e5" and call in {"where", "where_other"}):
            assert torch.equal(program(call, dtype, 1)(x).float(), function(x, 1).float()), call
        # torch divides integers by way of float32, which `addcdiv` refuses.
        elif call not in {"div", "addcdiv"} or dtype == "fp8e5":
            assert "not implemented for" in refusal(call, dtype, 1), call


@pytest.mark.parametrize("dtype", ["u32", "fp8e4nv"])
@pytest.mark.parametrize("name", ["amax", "any", "argmin", "logsumexp", "cumsum", "abs", "relu"])
def test_a_call_without_numbers_has_kernels_for_these_dtypes_no_more(name, dtype):
    dim = () if name in {"abs", "relu"} else (0,)
    body = body_of_one(lambda x: getattr(x, name)(*dim))
    made = Program(body, archs=(SM_90,), x=native.tensor("n", dtype=dtype))
    if (name, dtype) in {("logsumexp", "u32"), ("cumsum", "u32")}:
        # They are of float32 and int64 then.
        torch.testing.assert_close(made(inputs(dtype)), body(inputs(dtype).to(torch.int32)))
        return
    with pytest.raises(UnsupportedBody, match="not implemented for"):
        _ = made.body.built
