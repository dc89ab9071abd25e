"""Enums and records of the drop-in: what a caller may pass, and what the body gets."""

import dataclasses
import enum
import types

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from opforge.magi import magi_register_custom_op

Tensor = torch.Tensor


class Act(enum.Enum):
    SILU = "silu"
    GELU = "gelu"


class Text(str, enum.Enum):
    A = "a"
    B = "b"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Odd(enum.Enum):
    PAIR = (1, 2)
    FLOAT = 0.5


class Tricky(enum.Enum):
    """Its values look like what the schema carries for members."""

    A = "Tricky.B"
    B = "b"


@pytest.fixture(params=["eager", "compiled"])
def run(request):
    """Calls a function as it is, or compiled."""
    if request.param == "eager":
        return lambda function, *args: function(*args)

    def compiled(op, *args):
        def function(*args):
            return op(*args)

        torch._dynamo.reset()
        return torch.compile(function, backend="aot_eager", fullgraph=True)(*args)

    return compiled


@pytest.mark.parametrize("given", ["gelu", Act.GELU], ids=["value", "member"])
def test_an_enum_of_texts_reaches_the_body_as_it_was_given(op_name, run, given):
    seen = []

    @magi_register_custom_op(op_name())
    def op(x: Tensor, act: Act) -> Tensor:
        seen.append(act)
        return x * 2 if act == given else x * 3

    assert run(op, torch.ones(1), given).item() == 2.0
    assert {type(act) for act in seen} == {type(given)}
    assert set(seen) == {given}


@dataclasses.dataclass(frozen=True)
class Acting:
    act: Act
    also: Act | None = None


@pytest.mark.parametrize("given", ["gelu", Act.GELU], ids=["value", "member"])
def test_so_does_one_in_a_record(op_name, run, given):
    seen = []

    @magi_register_custom_op(op_name())
    def op(x: Tensor, cfg: Acting) -> Tensor:
        seen.append(cfg)
        return x + 1

    run(op, torch.ones(1), Acting(given))
    run(op, torch.ones(1), Acting("silu", given))
    assert {(type(cfg.act), cfg.act) for cfg in seen} == {(type(given), given), (str, "silu")}
    assert {cfg.also for cfg in seen} == {None, given}


@pytest.mark.parametrize("default", ["gelu", Act.GELU], ids=["value", "member"])
def test_so_does_a_default(op_name, default):
    @magi_register_custom_op(op_name())
    def op(x: Tensor, act: Act = default) -> Tensor:
        seen.append(act)
        return x + 1

    seen = []
    op(torch.ones(1))
    assert (type(seen[0]), seen) == (type(default), [default])


@pytest.mark.parametrize("given", ["Tricky.B", "b", Tricky.A, Tricky.B], ids=repr)
def test_a_value_that_looks_like_a_member_is_told_apart_from_it(op_name, given):
    seen = []

    @magi_register_custom_op(op_name())
    def op(x: Tensor, kind: Tricky) -> Tensor:
        seen.append(kind)
        return x + 1

    op(torch.ones(1), given)
    assert seen == [given]


@pytest.mark.parametrize(
    ("cls", "member"),
    [(Text, Text.B), (Level, Level.HIGH), (Odd, Odd.PAIR), (Odd, Odd.FLOAT)],
    ids=str,
)
def test_other_enums_reach_the_body_as_members(op_name, run, cls, member):
    seen = []

    @magi_register_custom_op(op_name())
    def op(x: Tensor, kind: cls) -> Tensor:
        seen.append(kind)
        return x + 1

    run(op, torch.ones(1), member)
    run(op, torch.ones(1), member.value)
    assert len(seen) >= 2
    assert all(kind is member for kind in seen)


@pytest.mark.parametrize("given", ["relu", "Act.SILU"])
def test_a_value_outside_the_enum_is_a_value_error_with_the_choices(op_name, given):
    name = op_name()

    @magi_register_custom_op(name)
    def op(x: Tensor, act: Act) -> Tensor:
        return x + 1

    with pytest.raises(ValueError, match=f"{given!r} is not a value of Act") as caught:
        op(torch.ones(1), given)
    text = str(caught.value)
    assert name in text
    assert "parameter 'act'" in text
    assert "pass one of <Act.SILU: 'silu'>" in text


@dataclasses.dataclass(frozen=True)
class Cfg:
    scale: float
    shift: float = 0.0


@dataclasses.dataclass(frozen=True)
class Wider(Cfg):
    more: str = "more"


WIDER = Wider(1.0, 1.0)


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Cfg
    weight: Tensor


class Bare:
    """Has the attributes, and nothing else in common with Cfg."""

    scale, shift = 2.0, 1.0


@pytest.mark.parametrize(
    "given",
    [Cfg(2.0, 1.0), Wider(2.0, 1.0), types.SimpleNamespace(scale=2.0, shift=1.0), Bare()],
    ids=lambda value: type(value).__name__,
)
def test_anything_with_the_attributes_is_taken_for_a_record(op_name, run, given):
    seen = []

    @magi_register_custom_op(op_name())
    def op(x: Tensor, cfg: Cfg) -> Tensor:
        seen.append(type(cfg))
        return x * cfg.scale + cfg.shift

    assert run(op, torch.ones(1), given).item() == 3.0
    assert set(seen) == {Cfg}


def test_so_is_it_inside_another_record_and_as_a_default(op_name):
    @magi_register_custom_op(op_name())
    def op(outer: Outer, also: Cfg = WIDER) -> Tensor:
        return outer.weight * outer.inner.scale + also.shift

    outer = types.SimpleNamespace(inner=Wider(3.0), weight=torch.ones(1))
    assert op(outer).item() == 4.0
    assert op(outer, types.SimpleNamespace(scale=1.0, shift=2.0)).item() == 5.0


def test_a_value_without_the_attributes_is_a_type_error(op_name):
    @magi_register_custom_op(op_name())
    def op(x: Tensor, cfg: Cfg) -> Tensor:
        return x * cfg.scale

    for wrong in (2.0, None, types.SimpleNamespace(scale=2.0)):
        with pytest.raises(TypeError, match=f"expected Cfg, got {type(wrong).__name__}"):
            op(torch.ones(1), wrong)


@dataclasses.dataclass(frozen=True)
class Percent:
    """Takes 50 for a half: made from its own field, it would be half a percent."""

    share: float

    def __post_init__(self):
        object.__setattr__(self, "share", self.share / 100)


@dataclasses.dataclass(frozen=True)
class PercentAndRest(Percent):
    """Cannot be made from all of its fields."""

    rest: float = dataclasses.field(init=False, default=0.0)

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "rest", 1 - self.share)


@pytest.mark.parametrize("cls", [Percent, PercentAndRest])
def test_a_record_is_rebuilt_as_it_is_without_post_init(cls, op_name, run):
    seen = []

    @magi_register_custom_op(
        op_name(),
        infer_output_meta_fn=lambda x, by: seen.append(by) or torch.empty_like(x),
        setup_context_fn=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]),
        backward_fn=lambda ctx, grad: (grad * ctx.by.share, None),
    )
    def op(x: Tensor, by: cls) -> Tensor:
        seen.append(by)
        return x * by.share

    x, half = torch.ones(1, requires_grad=True), cls(50)
    with FakeTensorMode():
        op(torch.empty(1), half)
    out = run(op, x, half)
    out.backward()
    assert out.item() == x.grad.item() == 0.5
    assert set(seen) == {half}
    assert op(torch.ones(1), types.SimpleNamespace(share=0.25, rest=1.0)).item() == 0.25
