"""Numbers and dtypes that torch refuses on this GPU are those that a build refuses."""

import math

import pytest

from opforge.errors import UnsupportedBody
from support.native.torch_numbers import CALLS, inputs, numbers, program

DTYPES = (
    "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "i1",
    "fp16", "bf16", "fp32", "fp64", "fp8e4nv", "fp8e5",
)  # fmt: skip
# What no library makes, though torch does: a bool to the power of True, a bool that is shifted.
OF_BOOLS = {("pow", True), *((call, n) for call in ("lshift", "rshift") for n in (0, 2, -1))}


def is_also_refused(call, dtype, number):
    """What torch takes because it computes nothing, or wraps around, and no library makes."""
    if dtype == "i1":
        return (call, number) in OF_BOOLS
    if dtype in {"u16", "u32", "u64", "fp8e4nv", "fp8e5"}:
        return (call in {"pow", "rpow"} and number in {0, 1}) or math.isnan(number)
    return call == "addcmul" or (call.endswith("_alpha") and number == -(2**63))


def is_taken(call, dtype, number):
    try:
        CALLS[call](inputs(dtype).cuda(), number)
    except (OverflowError, RuntimeError, TypeError):
        return False
    return True


def is_built(call, dtype, number):
    try:
        _ = program(call, dtype, number).body.built
    except UnsupportedBody:
        return False
    return True


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("call", CALLS)
def test_a_number_is_refused_where_this_gpu_refuses_it(call, dtype):
    found = [(n, is_taken(call, dtype, n), is_built(call, dtype, n)) for n in numbers(dtype)]
    assert not [n for n, taken, built in found if built and not taken]
    refused = [n for n, taken, built in found if taken and not built]
    assert not [n for n in refused if not is_also_refused(call, dtype, n)]
