"""Lists of tensors and optional tensors, in and out, under autograd."""

import dataclasses

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import opforge
from opforge.errors import BadGradient
from support.gradients import doubles, leaf

Tensor = torch.Tensor


@dataclasses.dataclass(frozen=True)
class Bundle:
    items: list[Tensor]


def test_a_list_of_tensors_takes_a_list_of_gradients(op_name):
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[0])

    def backward(ctx, grad):
        return ([grad * 2 * t for t in ctx.saved_tensors], None)

    @opforge.op(op_name(), backward=backward, setup_context=setup_context)
    def op(items: list[Tensor], scale: float = 1.0) -> Tensor:
        return sum(t * t for t in items)

    grads = torch.func.grad(lambda items: op(items).sum())([torch.ones(2), torch.full((2,), 3.0)])
    assert [g.tolist() for g in grads] == [[2.0, 2.0], [6.0, 6.0]]
    assert gradcheck(lambda a, b, c: op([a, b, c]), (doubles(2), doubles(2), doubles(2)))
    assert gradgradcheck(lambda a, b: op([a, b]), (doubles(2), doubles(2)))


@pytest.mark.parametrize(
    ("gradients", "text"),
    [
        (lambda g: [g], "must return a list of 2 gradients for items"),
        (lambda g: g, "must return a list of 2 gradients for items"),
        (lambda g: [g, torch.ones(9)], r"parameter 'items'.*shape \(9,\)"),
    ],
)
def test_what_is_no_list_of_gradients_is_refused_by_name(op_name, gradients, text):
    name = op_name()

    @opforge.op(name, backward=lambda ctx, grad: (gradients(grad),))
    def op(items: list[Tensor]) -> Tensor:
        return items[0] + items[1]

    with pytest.raises(BadGradient, match=text) as caught:
        op([leaf(2), leaf(2)]).sum().backward()
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "make", "gradients"),
    [
        (tuple[Tensor, ...], lambda y: (torch.ones(2), y), lambda g: (g, g * 2)),
        (list[Tensor], lambda y: [torch.ones(2), y], lambda g: [None, g * 2]),
        (list[Tensor | None], lambda y: [None, y], lambda g: [None, g * 2]),
        (Bundle, lambda y: Bundle([torch.ones(2), y]), lambda g: {"items": [g, g * 2]}),
        # Without a tensor.
        (list[Tensor | None], lambda y: [None, None], lambda g: [None, None]),
        (list[Tensor], lambda y: [], lambda g: []),
    ],
)
def test_gradients_have_the_form_of_the_list(op_name, annotation, make, gradients):
    def body(x, items):
        listed = items.items if annotation is Bundle else items
        return x + 2 * listed[1] if listed and listed[1] is not None else x + 0

    body.__annotations__ = {"x": Tensor, "items": annotation, "return": Tensor}
    op = opforge.op(body, name=op_name(), backward=lambda ctx, g: (g, gradients(g)))
    x, y = leaf(2), leaf(2)
    items = make(y)
    op(x, items).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
    held = items.items if annotation is Bundle else items
    assert any(each is y for each in held) is (y.grad is not None)
    assert y.grad is None or y.grad.tolist() == [2.0, 2.0]


def test_an_optional_list_takes_gradients_or_none(op_name):
    @opforge.op(
        op_name(),
        backward=lambda ctx, grad: (grad, [grad * 2] if ctx.given else None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "given", inputs[1] is not None),
    )
    def op(x: Tensor, items: list[Tensor] | None = None) -> Tensor:
        return x * 1.0 if items is None else x + 2 * items[0]

    x, y = leaf(2), leaf(2)
    op(x, [y]).sum().backward()
    op(x).sum().backward()
    assert (x.grad.tolist(), y.grad.tolist()) == ([2.0, 2.0], [2.0, 2.0])


def test_a_returned_list_brings_a_list_of_gradients(op_name):
    seen = []

    def backward(ctx, grads, last):
        seen.append((type(grads), len(grads)))
        return grads[0] + grads[1] * 2 + last * 3

    @opforge.op(op_name(), backward=backward)
    def op(x: Tensor) -> tuple[list[Tensor], Tensor]:
        return [x + 0, x * 2], x * 3

    x = leaf(2)
    items, last = op(x)
    assert isinstance(items, list)
    (items[0] + items[1] + last).sum().backward()
    assert seen == [(list, 2)]
    assert x.grad.tolist() == [6.0, 6.0]


@pytest.mark.parametrize("give", [True, False])
def test_an_optional_output_may_be_there_or_not(op_name, give):
    seen = []

    def backward(ctx, first, second):
        seen.append(second)
        return first, None

    @opforge.op(op_name(), backward=backward)
    def op(x: Tensor, give: bool) -> tuple[Tensor, Tensor | None]:
        return x + 1, (x * 2 if give else None)

    x = leaf(2)
    first, second = op(x, give)
    assert (second is not None) == give
    first.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
    assert (seen[0] is not None) == give
