"""Backwards that a library can carry, and those that stay behind."""

import functools
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from torch import Tensor

import opforge
from opforge.native.frontend.backward_formula import formula_of, why_left_behind
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


def by_tensors(ctx, grad):
    y, _, _ = ctx.saved_tensors
    return halves(grad, y)[0] if False else halves(grad, y)


def both_at_once(ctx, grad):
    y, _, _ = ctx.saved_tensors
    return halves(grad, y)


def item_by_item(ctx, grad):
    y = ctx.saved_tensors[0]
    left, right = halves(grad, y)
    return right, left


def through_torch(ctx, grad):
    (_, out, x) = ctx.saved_tensors
    return torch.ops.formula_tests.times(out, ctx.two), times(x, -1.0 if False else 3)


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
    def of(fn, backward, setup):
        options = {"backward": backward, "setup_context": setup} if backward else {}
        op = opforge.op(fn, name=op_name(), mode="custom_op", **options)
        return formula_of(registry.get(op), OWN)

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
        (body, lambda ctx, grad: (grad, None), None),
        (body_of_two, by_tensors, save_tensors),
        (body_of_two, through_torch, save_tensors),
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


def backward_of_record(ctx, grad):
    return times(grad, ctx.settings), None


def test_the_reason_for_leaving_a_backward_behind_names_the_parameter_that_is_a_record():
    @opforge.op("formula_tests::by_record", mode="custom_op", backward=backward_of_record)
    def by_record(x: Tensor, settings: Settings) -> Tensor:
        return x * settings.factor

    entry = registry.get(by_record)
    assert formula_of(entry, OWN) == ()
    assert why_left_behind(entry) == "because parameter 'settings' is a dataclass"


def test_other_reasons_for_leaving_a_backward_behind():
    @opforge.op("formula_tests::by_literal", mode="custom_op", backward=backward_of_record)
    def by_literal(x: Tensor, kind: Literal["a", "b"]) -> Tensor:
        return x * 1

    @opforge.op("formula_tests::by_keyword", mode="custom_op", backward=backward_of_record)
    def by_keyword(x: Tensor, *, factor: float) -> Tensor:
        return x * factor

    @opforge.op("formula_tests::by_arithmetic", mode="custom_op", backward=lambda ctx, g: g * 2)
    def by_arithmetic(x: Tensor) -> Tensor:
        return x * 2

    reasons = [why_left_behind(registry.get(op)) for op in (by_literal, by_keyword, by_arithmetic)]
    assert reasons == [
        "because parameter 'kind' is a Literal",
        "because parameter 'factor' is keyword-only",
        "which does more than call the library's operators",
    ]
