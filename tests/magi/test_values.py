"""Enums and records of the drop-in: what a caller may pass, and what the body gets."""

import enum

import pytest
import torch

from opforge.magi import magi_register_custom_op

Tensor = torch.Tensor


class Act(enum.Enum):
    SILU = "silu"
    GELU = "gelu"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Odd(enum.Enum):
    PAIR = (1, 2)
    FLOAT = 0.5


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, backend="aot_eager", fullgraph=True)


@pytest.mark.parametrize(
    ("cls", "member"),
    [(Act, Act.GELU), (Level, Level.HIGH), (Odd, Odd.PAIR), (Odd, Odd.FLOAT)],
    ids=str,
)
@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_the_body_gets_the_member_for_a_member_and_for_its_raw_value(op_name, cls, member, how):
    seen = []

    @magi_register_custom_op(op_name())
    def op(x: Tensor, kind: cls) -> Tensor:
        seen.append(kind)
        return x + 1

    def function(x, kind):
        return op(x, kind)

    if how == "compiled":
        function = compiled(function)
    function(torch.ones(1), member)
    function(torch.ones(1), member.value)
    assert len(seen) >= 2
    assert all(kind is member for kind in seen)


def test_a_value_outside_the_enum_is_a_value_error_with_the_choices(op_name):
    name = op_name()

    @magi_register_custom_op(name)
    def op(x: Tensor, act: Act) -> Tensor:
        return x + 1

    with pytest.raises(ValueError, match="'relu' is not a value of Act") as caught:
        op(torch.ones(1), "relu")
    text = str(caught.value)
    assert name in text
    assert "parameter 'act'" in text
    assert "Act.SILU" in text
