"""Numbers and dtypes that torch refuses on this GPU are those that a build refuses."""

import pytest

from opforge.errors import CannotTrace
from support.native.torch_numbers import CALLS, inputs, numbers, program

DTYPES = (
    "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "i1",
    "fp16", "bf16", "fp32", "fp64", "fp8e4nv", "fp8e5",
)  # fmt: skip
# What no library makes, though torch does.
ALSO_REFUSED = {("pow", True), *((call, n) for call in ("lshift", "rshift") for n in (0, 2, -1))}


def is_taken(call, dtype, number):
    try:
        CALLS[call](inputs(dtype).cuda(), number)
    except (RuntimeError, TypeError):
        return False
    return True


def is_built(call, dtype, number):
    try:
        _ = program(call, dtype, number).body.built
    except CannotTrace:
        return False
    return True


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("call", CALLS)
def test_a_number_is_refused_where_this_gpu_refuses_it(call, dtype):
    tried = [n for n in numbers(dtype) if not (dtype == "i1" and (call, n) in ALSO_REFUSED)]
    differing = [n for n in tried if is_taken(call, dtype, n) != is_built(call, dtype, n)]
    assert not differing
