"""What `backward` may return: one gradient per original parameter, in any of its shapes."""

import dataclasses
import types

import pytest
import torch
from torch.autograd import gradcheck

import opforge
from opforge.errors import (
    BadGradient,
    WrongReturn,
)
from support.gradients import Pair, Weights, doubles, leaf

Tensor = torch.Tensor


@dataclasses.dataclass(frozen=True)
class Nested:
    inner: Weights
    extra: Tensor


def affine_setup(ctx, inputs, output):
    x, weights = inputs
    ctx.save_for_backward(x, weights.weight)
    ctx.scale = weights.scale


def affine_with(op_name, backward):
    """x * cfg.weight * cfg.scale, with the given backward."""

    @opforge.op(op_name(), backward=backward, setup_context=affine_setup)
    def affine(x: Tensor, cfg: Weights) -> Tensor:
        return x * cfg.weight * cfg.scale

    return affine


def affine_gradients(ctx, grad):
    x, weight = ctx.saved_tensors
    return grad * weight * ctx.scale, grad * x * ctx.scale


@pytest.mark.parametrize(
    "shape",
    [
        lambda grad: {"weight": grad},
        lambda grad: {"weight": grad, "bias": None, "scale": None},
        lambda grad: types.SimpleNamespace(weight=grad),
        lambda grad: Weights(grad, None, None, None),
        lambda grad: Weights(grad, scale=3.0, count=9),
    ],
    ids=[
        "dict of some fields",
        "dict with None",
        "object with attributes",
        "instance of None",
        "instance",
    ],
)
def test_a_record_takes_its_gradient_as(op_name, shape):
    def backward(ctx, grad):
        grad_x, grad_weight = affine_gradients(ctx, grad)
        return grad_x, shape(grad_weight)

    affine = affine_with(op_name, backward)
    assert gradcheck(lambda x, w: affine(x, Weights(w, scale=2.0)), (doubles(3), doubles(3)))


def test_none_for_a_record_means_no_gradient_for_any_of_its_tensors(op_name):
    affine = affine_with(op_name, lambda ctx, grad: (grad, None))
    x, weight = leaf(2), leaf(2)
    affine(x, Weights(weight)).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
    assert weight.grad is None


def test_a_nested_record_takes_nested_gradients(op_name):
    def setup_context(ctx, inputs, output):
        x, cfg = inputs
        ctx.save_for_backward(x, cfg.inner.weight, cfg.extra)

    def backward(ctx, grad):
        x, weight, extra = ctx.saved_tensors
        return grad * weight * extra, {
            "inner": {"weight": grad * x * extra},
            "extra": grad * x * weight,
        }

    @opforge.op(op_name(), backward=backward, setup_context=setup_context)
    def op(x: Tensor, cfg: Nested) -> Tensor:
        return x * cfg.inner.weight * cfg.extra

    assert gradcheck(
        lambda x, w, e: op(x, Nested(Weights(w), e)), (doubles(2), doubles(2), doubles(2))
    )


def test_an_optional_record_takes_a_gradient_when_present_and_none_when_absent(op_name):
    def setup_context(ctx, inputs, output):
        x, cfg = inputs
        ctx.has = cfg is not None
        ctx.save_for_backward(x, *([cfg.weight] if cfg else []))

    def backward(ctx, grad):
        if not ctx.has:
            return grad, None
        x, weight = ctx.saved_tensors
        return grad * weight, {"weight": grad * x}

    @opforge.op(op_name(), backward=backward, setup_context=setup_context)
    def op(x: Tensor, cfg: Weights | None = None) -> Tensor:
        return x * cfg.weight if cfg is not None else x + 0

    assert gradcheck(lambda x, w: op(x, Weights(w)), (doubles(2), doubles(2)))
    assert gradcheck(op, (doubles(2),))


@pytest.mark.parametrize(
    "make",
    [
        tuple,
        list,
        lambda grads: Pair(*grads),
        lambda grads: dict(zip(Pair._fields, grads, strict=True)),
    ],
    ids=["tuple", "list", "NamedTuple", "dict"],
)
def test_a_named_tuple_takes_its_gradient_as(op_name, make):
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[0])

    def backward(ctx, grad):
        left, right = ctx.saved_tensors
        return (make([grad * right, grad * left]),)

    @opforge.op(op_name(), backward=backward, setup_context=setup_context)
    def op(pair: Pair) -> Tensor:
        return pair.left * pair.right

    assert gradcheck(lambda a, b: op(Pair(a, b)), (doubles(2), doubles(2)))


def test_a_gradient_that_autograd_can_sum_to_the_inputs_shape_is_accepted(op_name):
    @opforge.op(op_name(), backward=lambda ctx, g: (g, g))
    def op(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    x, y = leaf(3, 2), leaf(2)
    op(x, y).sum().backward()
    assert y.grad.tolist() == [3.0, 3.0]


def shifted(name, backward):
    @opforge.op(name, backward=backward)
    def op(x: Tensor, shift: Tensor | None = None, scale: float = 2.0) -> Tensor:
        out = x * scale
        return out if shift is None else out + shift

    return op


@pytest.mark.parametrize(
    "result", [lambda g: g, lambda g: (g,), lambda g: (g, None), lambda g: (g, None, None)]
)
def test_gradients_of_defaults_that_need_none_may_be_left_out(op_name, result):
    op = shifted(op_name(), lambda ctx, g: result(g * 2))
    x = leaf(2)
    op(x).sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_the_gradient_of_a_default_that_needs_one_may_not_be_left_out(op_name):
    op = shifted(op_name(), lambda ctx, g: g * 2)
    with pytest.raises(BadGradient, match="returned 1 gradient, but the op has 3"):
        op(leaf(2), leaf(2)).sum().backward()


def counting(x: Tensor, count: int) -> Tensor:
    return x * count


def recorded(x: Tensor, cfg: Weights) -> Tensor:
    return x * cfg.weight


def alone(cfg: Weights) -> Tensor:
    return cfg.weight * 2


def summed(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def paired(x: Tensor, pair: tuple[Tensor, Tensor]) -> Tensor:
    return x + pair[0] + pair[1]


@pytest.mark.parametrize(
    ("fn", "result", "error", "text"),
    [
        (counting, lambda g: (g, g), BadGradient, "'count'.*not differentiable"),
        (recorded, lambda g: (g, {"weight": g, "count": g}), BadGradient, r"'cfg\.count'"),
        (recorded, lambda g: (g, {"scale": 1.0}), BadGradient, r"'cfg\.scale'"),
        (recorded, lambda g: (g, {"weight": torch.ones(5)}), BadGradient, r"'cfg\.weight'.*\(5,\)"),
        (
            recorded,
            lambda g: (g, {"weightt": g}),
            BadGradient,
            "'weightt'.*\n.*did you mean 'weight'",
        ),
        (recorded, lambda g: (g, object()), WrongReturn, "'cfg'.*returned a object for cfg"),
        (recorded, lambda g: (g, g), WrongReturn, "'cfg'.*returned a Tensor for cfg"),
        # It is not guessed which of the two is meant.
        (alone, lambda g: (g, g), WrongReturn, "'cfg'.*returned a tuple for cfg"),
        (summed, lambda g: (g,), BadGradient, r"1 gradient, but the op has 2 .*\n.*grad_x, grad_y"),
        (summed, lambda g: (g, g, g), BadGradient, "3 gradients, but the op has 2 parameters"),
        (summed, lambda g: g, BadGradient, "1 gradient, but the op has 2 parameters"),
        (summed, lambda g: (g, torch.ones(7)), BadGradient, r"\(7,\) for y, whose shape is \(2,\)"),
        (summed, lambda g: (g, 1.0), WrongReturn, "'y'.*returned a float as the gradient of y"),
        (paired, lambda g: (g, (g, g, g)), BadGradient, "'pair'.*of pair: expected 2, got 3"),
    ],
)
def test_what_is_no_gradient_of_a_parameter_is_refused_by_its_name(
    op_name, fn, result, error, text
):
    op = opforge.op(fn, name=op_name(), backward=lambda ctx, g: result(g))
    weights = Weights(leaf(2))
    args = {
        counting: (leaf(2), 3),
        recorded: (leaf(2), weights),
        alone: (weights,),
        summed: (leaf(2), leaf(2)),
        paired: (leaf(2), (leaf(2), leaf(2))),
    }[fn]
    with pytest.raises(error, match=text) as caught:
        op(*args).sum().backward()
    assert opforge.info(op).name in str(caught.value)
    assert isinstance(caught.value, ValueError if error is BadGradient else TypeError)


def test_a_mistake_is_refused_by_name_while_compiling(op_name):
    name = op_name()

    @opforge.op(name, backward=lambda ctx, g: (g, g))
    def op(x: Tensor, count: int) -> Tensor:
        return x * count

    with pytest.raises(Exception, match="parameter 'count'") as caught:
        torch.compile(op, backend="aot_eager", fullgraph=True)(leaf(2), 3).sum().backward()
    assert name in str(caught.value)


def needs_of(op_name, *arguments):
    seen = []

    def backward(ctx, grad):
        seen.append(ctx.needs_input_grad)
        return grad, None, None, None, None

    @opforge.op(op_name(), backward=backward)
    def op(x: Tensor, count: int, cfg: Weights | None, pair: Pair, items: list[Tensor]) -> Tensor:
        return x + 1

    op(*arguments).sum().backward()
    return seen[0]


def test_needs_input_grad_has_one_entry_per_parameter_true_if_any_of_its_tensors_needs_one(op_name):
    plain = torch.ones(2)
    pair = Pair(plain, plain)
    for arguments, needs in [
        ((Weights(leaf(2)), pair, [plain]), (True, False, True, False, False)),
        (
            (Weights(plain, leaf(2)), Pair(plain, leaf(2)), [plain, leaf(1)]),
            (True, False, True, True, True),
        ),
        ((None, pair, []), (True, False, False, False, False)),
    ]:
        assert needs_of(op_name, leaf(2), 3, *arguments) == needs
