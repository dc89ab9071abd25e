"""Schemas that declare a view: autograd knows of it, so a write to it is never lost."""

import pytest
import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

import opforge
from opforge.errors import MissingBackward, WrongResult

VIEW = "(Tensor(a) x) -> Tensor(a)"


def flat_view(name, **options):
    @opforge.op(name, schema=VIEW, **options)
    def flat(x: Tensor) -> Tensor:
        return x.view(-1)

    return flat


def unflatten(ctx, grad):
    return grad.view(2, 2)


def says_pure(ctx, inputs, output):
    ctx._is_pure_view = True


def leaf_and_double():
    leaf = torch.ones(2, 2, requires_grad=True)
    return leaf, leaf * 2


def test_a_declared_view_is_one_and_its_gradient_is_right(op_name):
    flat = flat_view(op_name(), backward=unflatten)
    leaf, x = leaf_and_double()
    out = flat(x)
    assert out._is_view()
    (out * torch.arange(4.0)).sum().backward()
    assert leaf.grad.tolist() == [[0, 2], [4, 6]]


@pytest.mark.parametrize("options", [{}, {"backward": unflatten}], ids=["plain", "with backward"])
def test_a_write_to_a_declared_view_raises_instead_of_losing_its_gradient(op_name, options):
    flat = flat_view(op_name(), **options)
    _, x = leaf_and_double()
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        flat(x).mul_(5)


def test_the_gradient_of_a_write_to_a_pure_view_is_right(op_name):
    flat = flat_view(op_name(), backward=unflatten, setup_context=says_pure)
    leaf, x = leaf_and_double()
    flat(x).mul_(5)
    x.sum().backward()
    assert leaf.grad.tolist() == [[10, 10], [10, 10]]


def test_an_input_that_is_changed_and_returned_is_returned_itself(op_name):
    @opforge.op(op_name(), schema="(Tensor(a!) x) -> Tensor(a!)")
    def doubled(x):
        return x.mul_(2)

    _, x = leaf_and_double()
    assert doubled(x) is x
    assert x._version == 1
    with pytest.raises(MissingBackward):
        x.sum().backward()


@pytest.mark.parametrize("options", [{}, {"backward": unflatten}], ids=["plain", "with backward"])
def test_a_declared_view_is_refused_by_torch_func(op_name, options):
    flat = flat_view(op_name(), **options)

    def write(x):
        y = x * 2
        flat(y).mul_(5)
        return y.sum()

    with pytest.raises(WrongResult, match="cannot follow"):
        torch.func.grad(write)(torch.ones(2, 2))


def two(value=1.0):
    return TwoTensor(torch.full((2, 2), value), torch.full((2, 2), value))


def test_a_view_that_a_subclass_returns_is_one_for_autograd(op_name):
    flat = flat_view(op_name(), backward=unflatten)
    leaf = two().requires_grad_()
    out = flat(leaf * 2)
    assert out._is_view()
    (out * torch.arange(4.0)).sum().backward()
    assert leaf.grad.a.tolist() == [[0, 2], [4, 6]]
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        flat(leaf * 2).mul_(5)


@pytest.mark.parametrize("make", [lambda: torch.ones(2, 2), two], ids=["tensor", "subclass"])
def test_a_write_to_one_of_several_declared_views_raises(op_name, make):
    schema = "(Tensor(a) x) -> Tensor(a)[]"

    @opforge.op(op_name(), schema=schema, backward=lambda ctx, grads: torch.stack(grads))
    def rows(x):
        return list(x.unbind())

    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        rows(make().requires_grad_() * 2)[0].mul_(5)


def test_several_views_of_a_subclass_are_refused(op_name):
    schema = "(Tensor(a) x) -> (Tensor(a), Tensor(a))"

    @opforge.op(op_name(), schema=schema, backward=lambda ctx, g, h: g + h)
    def halves(x):
        return x[0], x[1]

    with pytest.raises(WrongResult, match="several views of a tensor subclass"):
        halves(two().requires_grad_() * 2)
    assert [h.a.tolist() for h in halves(two())] == [[1.0, 1.0], [1.0, 1.0]]
    _, x = leaf_and_double()
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        halves(x)[0].mul_(5)


def test_without_a_backward_a_view_of_a_subclass_that_requires_grad_is_refused(op_name):
    flat = flat_view(op_name())
    with pytest.raises(WrongResult, match="cannot follow without a backward"):
        flat(two().requires_grad_() * 2)
    with torch.no_grad():
        assert flat(two().requires_grad_() * 2).a.tolist() == [2.0] * 4
    x = two()
    flat(x).mul_(5)
    assert x.a.tolist() == [[5.0, 5.0], [5.0, 5.0]]


def test_without_a_backward_going_back_through_a_subclass_raises(op_name):
    """Its own call of the op has no history, so the gradient would be lost silently."""

    @opforge.op(op_name())
    def double(x: Tensor) -> Tensor:
        return x * 2

    leaf = two().requires_grad_()
    out = double(leaf * 2)
    assert (type(out), out.requires_grad) == (TwoTensor, True)
    with pytest.raises(MissingBackward):
        (out + leaf).sum().backward()
    assert double(two()).requires_grad is False


def test_a_mutated_subclass_has_no_stale_gradient(op_name):
    @opforge.op(op_name(), mutates_args=["x"])
    def triple(x: Tensor) -> None:
        x.mul_(3)

    leaf = two().requires_grad_()
    x = leaf * 2
    version = x._version
    triple(x)
    assert (x.a.tolist()[0], x._version - version) == ([6.0, 6.0], 1)
    with pytest.raises(MissingBackward):
        x.sum().backward()
