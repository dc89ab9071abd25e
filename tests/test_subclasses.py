"""Tensors that are more than tensors: subclasses, modes, fakes, lazy views, functorch levels."""

import dataclasses
from typing import ClassVar

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

import opforge

Tensor = torch.Tensor


@dataclasses.dataclass(frozen=True)
class Weights:
    weight: Tensor
    scale: float = 1.0


class Wrapped(Tensor):
    """Holds a tensor, and notes every operator that reaches it."""

    seen: ClassVar[list] = []

    @staticmethod
    def __new__(cls, inner):
        return Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            dtype=inner.dtype,
            device=inner.device,
            requires_grad=inner.requires_grad,
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func)
        unwrap = lambda t: t.inner if isinstance(t, cls) else t  # noqa: E731
        out = func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs or {}))
        return tree_map(lambda t: cls(t) if isinstance(t, Tensor) else t, out)


class Watching(TorchDispatchMode):
    """Notes every operator."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def nothing_seen():
    Wrapped.seen.clear()


def backward(ctx, grad):
    return grad * 3


KINDS = pytest.mark.parametrize(
    "options", [{}, {"backward": backward}], ids=["plain", "with backward"]
)


def body_types(op_name, **options):
    """An op, and the list of types that its body has seen."""
    types = []

    @opforge.op(op_name(), **options)
    def op(x: Tensor) -> Tensor:
        types.append(type(x))
        return x * 2 + 1

    return op, types


CALLS = pytest.mark.parametrize("calls", [0, 20], ids=["at once", "after many calls"])


@KINDS
@CALLS
def test_a_subclass_sees_the_op_and_the_body_sees_plain_tensors(op_name, options, calls):
    op, types = body_types(op_name, **options)
    for _ in range(calls):
        op(torch.ones(2))
    out = op(Wrapped(torch.ones(2)))
    assert type(out) is Wrapped
    assert out.inner.tolist() == [3.0, 3.0]
    assert Wrapped.seen == [op]
    assert set(types) == {Tensor}


def test_a_subclass_that_requires_grad_gets_a_gradient(op_name):
    op, _ = body_types(op_name, backward=backward)
    x = Wrapped(torch.ones(2)).requires_grad_()
    out = op(x)
    assert out.requires_grad
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert type(grad) is Wrapped
    assert grad.inner.tolist() == [3.0, 3.0]


def test_a_subclass_in_a_record_and_in_a_list_reaches_its_dispatch(op_name):
    @opforge.op(op_name())
    def op(items: list[Tensor], cfg: Weights) -> Tensor:
        return items[0] * cfg.weight * cfg.scale

    plain, wrapped = torch.ones(2), Wrapped(torch.ones(2))
    overload = opforge.info(op).overload
    assert type(op([wrapped], Weights(plain, 2.0))) is Wrapped
    assert type(op([plain], Weights(wrapped, 2.0))) is Wrapped
    assert Wrapped.seen == [overload, overload]


@KINDS
def test_a_traceable_subclass_compiles(op_name, options):
    op, _ = body_types(op_name, **options)
    x = TwoTensor(torch.ones(2), torch.zeros(2))
    out = torch.compile(op, backend="aot_eager", fullgraph=True)(x)
    assert type(out) is TwoTensor
    assert (out.a.tolist(), out.b.tolist()) == ([3.0, 3.0], [1.0, 1.0])


@KINDS
@CALLS
@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "requires grad"])
def test_a_mode_sees_the_op_once_and_not_its_body(op_name, options, calls, grad):
    op, _ = body_types(op_name, **options)
    x = torch.ones(2, requires_grad=grad)
    for _ in range(calls):
        op(x)
    with Watching() as mode:
        op(x)
    assert mode.seen.count(op) == 1
    assert not {torch.ops.aten.mul.Tensor, torch.ops.aten.add.Tensor} & {*mode.seen}


def lazy_conj():
    return torch.tensor([1 + 2j, 3 + 4j]).conj()


def lazy_neg():
    return torch.tensor([1 + 2j, 3 + 4j]).conj().imag


@pytest.mark.parametrize("make", [lazy_conj, lazy_neg], ids=["conj", "neg"])
@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "requires grad"])
@CALLS
@KINDS
def test_a_lazy_view_reaches_the_body_resolved(op_name, options, make, grad, calls):
    """A kernel that reads memory by pointer would otherwise miss the conjugation or the sign."""
    seen = []

    @opforge.op(op_name(), **options)
    def op(x: Tensor) -> Tensor:
        seen.append((x.is_conj(), x.is_neg(), x.detach().clone()))
        return x * 2

    x = make()
    for _ in range(calls):
        op(x.clone().resolve_conj().resolve_neg())
    expected = x.resolve_conj().resolve_neg() * 2
    out = op(x.detach().requires_grad_() if grad else x)
    is_conj, is_neg, value = seen[-1]
    assert (is_conj, is_neg) == (False, False)
    torch.testing.assert_close(value * 2, expected)
    torch.testing.assert_close(out.detach(), expected)


def test_a_lazy_view_in_a_record_or_a_list_reaches_the_body_resolved(op_name):
    seen = []

    @opforge.op(op_name())
    def op(items: list[Tensor], cfg: Weights) -> Tensor:
        seen.extend(t.is_conj() for t in (*items, cfg.weight))
        return items[1] * cfg.weight

    op([torch.ones(2), lazy_conj()], Weights(lazy_conj()))
    assert seen == [False] * 3
