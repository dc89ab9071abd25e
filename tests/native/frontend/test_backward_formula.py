"""Backwards that a library can carry, and those that stay behind."""

import enum
import functools
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import opforge
from opforge.native.frontend.backward_formula import formula_of
from opforge.registry import registry


@opforge.op("formula_tests::times", mode="custom_op")
def times(x: Tensor, factor: float) -> Tensor:
    return x * factor


@opforge.op("formula_tests::halves", mode="custom_op")
def halves(grad: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return grad * 0.5, y * 0.5


@opforge.op("formula_tests::foreign", mode="custom_op")
def foreign(grad: Tensor) -> Tensor:
    return grad * 1


OWN = {"formula_tests::times", "formula_tests::halves"}
GRAD, X, Y, OUT = ("grad", 0), ("input", 0), ("input", 1), ("output", 0)
CALL = ("call", "formula_tests::halves", GRAD, Y)


def save_factor(ctx, inputs, output):
    """With a docstring."""
    ctx.factor = inputs[1]


def save_tensors(ctx, inputs, output):
    x, y = inputs
    ctx.save_for_backward(y, output, x)
    ctx.two = 2.0


def by_attribute(ctx, grad):
    return times(grad, ctx.factor), None


def both_at_once(ctx, grad):
    y, _, _ = ctx.saved_tensors
    return halves(grad, y)


def item_by_item(ctx, grad):
    y = ctx.saved_tensors[0]
    left, right = halves(grad, y)
    return right, left


def straight(ctx, grad):
    (_, out, x) = ctx.saved_tensors
    return torch.ops.formula_tests.times(out, ctx.two), times(x, 3)


def arithmetic(ctx, grad):
    return times(grad, ctx.factor) * 2, None


def looks(ctx, grad):
    if ctx.needs_input_grad[0]:
        return times(grad, ctx.factor), None
    return None, None


def not_in_the_library(ctx, grad):
    return foreign(grad), None


def by_keyword(ctx, grad):
    return times(grad, factor=ctx.factor), None


def handed_through(ctx, grad):
    return grad, None


def body(x: Tensor, factor: float) -> Tensor:
    return x * factor


def body_of_two(x: Tensor, y: Tensor) -> Tensor:
    return x + y


@pytest.fixture
def formula(op_name):
    def of(fn, backward, setup, declared=OWN):
        options = {"backward": backward, "setup_context": setup} if backward else {}
        op = opforge.op(fn, name=op_name(), mode="custom_op", **options)
        return formula_of(registry.get(op), declared)

    return of


@pytest.mark.parametrize(
    ("fn", "backward", "setup", "expected"),
    [
        (body, by_attribute, save_factor, (("call", "formula_tests::times", GRAD, Y), None)),
        (body, handed_through, None, (GRAD, None)),
        (body_of_two, both_at_once, save_tensors, (("item", CALL, 0), ("item", CALL, 1))),
        (body_of_two, item_by_item, save_tensors, (("item", CALL, 1), ("item", CALL, 0))),
        (
            body_of_two, straight, save_tensors,
            (
                ("call", "formula_tests::times", OUT, ("value", 2.0)),
                ("call", "formula_tests::times", X, ("value", 3)),
            ),
        ),
    ],
)  # fmt: skip
def test_calls_of_the_librarys_operators_are_carried(formula, fn, backward, setup, expected):
    assert formula(fn, backward, setup) == expected


@pytest.mark.parametrize(
    ("fn", "backward", "setup"),
    [
        (body, arithmetic, save_factor),
        (body, looks, save_factor),
        (body, not_in_the_library, save_factor),
        (body, by_keyword, save_factor),
        (body, None, None),
    ],
)
def test_anything_else_stays_behind(formula, fn, backward, setup):
    assert formula(fn, backward, setup) == ()


def test_lambdas_are_not_read_as_the_function_that_they_decorate():
    @opforge.op("formula_tests::a", mode="custom_op", backward=lambda _, g: (foreign(-g), None))
    def by_lambda(x: Tensor, y: Tensor) -> Tensor:
        return foreign(y)

    @opforge.op("formula_tests::b", backward=handed_through, setup_context=lambda c, i, o: None)
    def saved_by_lambda(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        y.x = z
        return foreign(x)

    # Read as a backward, the first function would return the gradient of foreign.
    for op in (by_lambda, saved_by_lambda):
        assert formula_of(registry.get(op), {"formula_tests::foreign"}) == ()


def test_a_function_in_place_of_another_is_not_read_as_the_other(formula):
    @functools.wraps(handed_through)
    def doubled(ctx, grad):
        return grad * 2, None

    assert formula(body, doubled, None) == ()


def test_a_setup_that_computes_stays_behind(formula):
    def setup(ctx, inputs, output):
        ctx.factor = inputs[1] * 2

    assert formula(body, by_attribute, setup) == ()


@dataclass(frozen=True)
class Settings:
    """A record."""

    factor: float = 2.0
    weight: Tensor | None = None


class Kind(enum.Enum):
    """An Enum, which the schema carries by value."""

    PLAIN = "plain"


class Span(NamedTuple):
    low: float
    high: float


@opforge.op("formula_tests::with_options", mode="custom_op")
def with_options(grad: Tensor, settings: Settings, kind: Kind = Kind.PLAIN) -> Tensor:
    return grad * settings.factor


@opforge.op("formula_tests::with_maybe", mode="custom_op")
def with_maybe(grad: Tensor, span: Span | None) -> Tensor:
    return grad * 1


@opforge.op("formula_tests::with_text", mode="custom_op")
def with_text(grad: Tensor, kind: str) -> Tensor:
    return grad * 1


RECORDS = {f"formula_tests::with_{name}" for name in ("options", "maybe", "text")}


def options(x: Tensor, settings: Settings, kind: Kind, span: Span, maybe: Span | None) -> Tensor:
    """Flat: x, factor, weight, kind, low, high, present, low, high."""
    return x * settings.factor


def save_options(ctx, inputs, output):
    _, ctx.settings, ctx.kind, (ctx.low, _), ctx.maybe = inputs
    ctx.span = inputs[3]
    ctx.save_for_backward(inputs[1].weight)


def whole(ctx, grad):
    return with_options(grad, ctx.settings, ctx.kind), None, None, None, None


def without_the_last(ctx, grad):
    return with_options(grad, ctx.settings), {"weight": grad}, None, None, None


def by_field(ctx, grad):
    weight = ctx.saved_tensors[0]
    return times(weight, ctx.settings.factor), None, None, (None, None), None


def taken_apart(ctx, grad):
    return times(times(grad, ctx.low), ctx.span[1]), None, None, None, None


def there_or_not(ctx, grad):
    return with_maybe(grad, ctx.maybe), None, None, None, None


def there(ctx, grad):
    return with_maybe(grad, ctx.span), None, None, None, None


def not_there(ctx, grad):
    return with_maybe(grad, None), None, None, None, None


def flat(term, *more):
    return (term, None, *(more or (None,)), None, None, None, None, None, None)


def call(name, *arguments):
    return ("call", f"formula_tests::{name}", *arguments)


IN = [("input", i) for i in range(9)]
NO, YES = ("value", False), ("value", True)


@pytest.mark.parametrize(
    ("backward", "expected"),
    [
        (whole, flat(call("with_options", GRAD, IN[1], IN[2], IN[3]))),
        (without_the_last, flat(call("with_options", GRAD, IN[1], IN[2]), GRAD)),
        (by_field, flat(call("times", IN[2], IN[1]))),
        (taken_apart, flat(call("times", call("times", GRAD, IN[4]), IN[5]))),
        (there_or_not, flat(call("with_maybe", GRAD, *IN[6:]))),
        (there, flat(call("with_maybe", GRAD, YES, IN[4], IN[5]))),
        (not_there, flat(call("with_maybe", GRAD, NO, ("value", None), ("value", None)))),
    ],
)
def test_records_and_enums_are_handed_on_as_the_schema_has_them(formula, backward, expected):
    assert formula(options, backward, save_options, OWN | RECORDS) == expected


def a_member_for_text(ctx, grad):
    return with_text(grad, ctx.kind), None, None, None, None


def text_for_a_member(ctx, grad):
    return with_options(grad, ctx.settings, "plain"), None, None, None, None


def maybe_for_one_that_is_there(ctx, grad):
    return with_options(grad, ctx.maybe), None, None, None, None


def another_record(ctx, grad):
    return with_options(grad, ctx.span), None, None, None, None


def of_no_field(ctx, grad):
    return grad, {"wait": grad}, None, None, None


def past_the_function(ctx, grad):
    return torch.ops.formula_tests.with_options(grad, ctx.settings), None, None, None, None


@pytest.mark.parametrize(
    "backward",
    [
        a_member_for_text, text_for_a_member, maybe_for_one_that_is_there, another_record,
        of_no_field, past_the_function,
    ],
)  # fmt: skip
def test_what_would_be_another_value_in_the_schema_stays_behind(formula, backward):
    assert formula(options, backward, save_options, OWN | RECORDS) == ()
