"""Constants of launches as JSON."""

import enum
import json

import pytest
import torch
import triton
import triton.language as tl

from opforge._compat import kernel_hash
from opforge.recording.constants import CannotRecord, decode, encode, show


@triton.jit
def helper(x):
    return x


@pytest.mark.parametrize(
    ("value", "encoded", "shown"),
    [
        (None, None, "None"),
        (True, True, "True"),
        (float("inf"), {"float": "inf"}, "inf"),
        ("silu", "silu", "'silu'"),
        ((16, (1.0,)), {"tuple": [16, {"tuple": [1.0]}]}, "(16, (1.0,))"),
        ([1, 2], {"tuple": [1, 2]}, "(1, 2)"),
        (tl.float16, {"dtype": "fp16"}, "tl.fp16"),
        (torch.float16, {"torch": "float16"}, "torch.float16"),
        (tl.constexpr(4), 4, "4"),
    ],
)
def test_a_value_is_encoded_shown_and_read_again(value, encoded, shown):
    assert encode(value) == encoded
    again = {list: tuple, tl.constexpr: lambda value: value.value}.get(type(value), lambda v: v)
    assert decode(encoded, None) == again(value)
    assert type(encode(value)) is type(encoded)
    assert json.loads(json.dumps(encode(value))) == encoded
    assert show(encoded) == shown


class Color(enum.IntEnum):
    RED = 1


def test_a_member_of_an_enum_is_named_with_its_value():
    encoded = encode(Color.RED)
    assert encoded == {"enum": f"{__name__}:Color.RED", "value": 1}
    assert show(encoded) == f"{__name__}:Color.RED"
    assert decode(encoded, lambda _name, _source: Color.RED) is Color.RED
    for other in (enum.IntEnum("Color", {"RED": 2}).RED, 1):
        with pytest.raises(CannotRecord):
            decode(encoded, lambda _name, _source, other=other: other)


def test_a_jitted_function_is_named_with_its_hash():
    encoded = encode(helper)
    source = kernel_hash.digest(helper)
    assert encoded == {"function": f"{__name__}:helper", "source": source}
    assert show(encoded) == f"{__name__}:helper"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (len, "a builtins.builtin_function_or_method"),
        ((1, {2}), "a builtins.set"),
        (tl.pointer_type(tl.float32), "pointer_type"),
        (enum.IntEnum("Made", {"A": 1}).A, "which has no name in"),
    ],
)
def test_other_values_are_refused(value, said):
    with pytest.raises(CannotRecord, match=said):
        encode(value)
