"""A torch that refuses a rule: the op is opaque, says why, and still raises what it should."""

import warnings

import pytest
import torch
import triton
import triton.language as tl

import opforge
from opforge import _compat
from opforge.errors import MissingBackward, OpforgeWarning, UnsupportedBody
from opforge.magi import magi_register_custom_op

Tensor = torch.Tensor
RULES = ["register_functional_rule", "around_functorch"]


@pytest.fixture(params=RULES)
def refused(request, monkeypatch):
    """One of the rules that a torch of another version may refuse."""

    def refuse(*args, **kwargs):
        raise RuntimeError("this torch has no such rule\nand says more")

    monkeypatch.setattr(_compat, request.param, refuse)
    return request.param


@triton.jit
def add_one(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + 1, mask=mask)


def launching(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    add_one[(1,)](x, out, x.numel(), BLOCK=16)
    return out


def double(x: Tensor) -> Tensor:
    return x * 2


@pytest.mark.parametrize("register", [opforge.op, magi_register_custom_op])
def test_an_op_that_would_be_transparent_is_opaque_and_says_why(op_name, refused, register):
    name = op_name()
    with pytest.warns(OpforgeWarning, match="registered opaque") as caught:
        op = register(name)(launching)
    (warning,) = caught
    text = str(warning.message)
    assert name in text
    assert "lets the compiler see through it (RuntimeError: this torch has no such rule)" in text
    info = opforge.info(op)
    assert (info.mode, info.kernels[0].kernel) == ("custom_op", add_one)
    assert "this torch has no such rule" in info.reason


def test_so_is_one_with_a_backward(op_name, monkeypatch):
    def refuse(*args, **kwargs):
        raise ImportError("no FunctionalTensorMode")

    monkeypatch.setattr(_compat, "register_functional_rule", refuse)
    with pytest.warns(OpforgeWarning, match="ImportError: no FunctionalTensorMode"):
        op = opforge.op(op_name(), backward=lambda ctx, grad: grad)(launching)
    assert opforge.info(op).mode == "custom_op"


def registered(name, fn, **options):
    with pytest.warns(OpforgeWarning, match="missing backward raise.*no such rule"):
        return opforge.op(name, **options)(fn)


def test_an_opaque_op_works_in_eager_and_compiled(op_name, refused):
    op = registered(op_name(), double)
    assert opforge.info(op).mode == "custom_op"
    compiled = torch.compile(lambda x: op(x) + 1, backend="aot_eager", fullgraph=True)
    assert op(torch.ones(2)).tolist() == [2.0, 2.0]
    assert compiled(torch.ones(2)).tolist() == [3.0, 3.0]
    torch.library.opcheck(op, (torch.ones(2),))


def test_a_missing_backward_raises_all_the_same(op_name, refused):
    op = registered(op_name(), double)

    def function(x):
        return op(x).sum() + x.sum()

    x = torch.ones(2, requires_grad=True)
    with pytest.raises(MissingBackward):
        function(x).backward()
    out = torch.compile(function, backend="aot_eager", fullgraph=True)(x)
    assert out.item() == 6.0
    with pytest.raises(MissingBackward):
        out.backward()
    with pytest.raises(MissingBackward):
        torch.func.grad(function)(torch.ones(2))


def test_an_op_that_mutates_works_and_refuses_what_it_refused(op_name, refused):
    def add_(x: Tensor) -> None:
        x.add_(1)

    op = registered(op_name(), add_, mutates_args=["x"])

    def function(x):
        op(x)
        return x * 2

    x = torch.zeros(2)
    op(x)
    assert torch.compile(function, backend="aot_eager", fullgraph=True)(x).tolist() == [4.0, 4.0]
    assert x.tolist() == [2.0, 2.0]
    with pytest.raises(UnsupportedBody):
        op(torch.zeros(2, requires_grad=True))
    tracked = torch.zeros(2, requires_grad=True) * 1
    op(tracked)
    with pytest.raises(MissingBackward):
        tracked.sum().backward()


def test_an_op_without_tensors_needs_no_rule(op_name, refused):
    def zeros(n: int) -> Tensor:
        return torch.zeros(n)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert opforge.op(op_name())(zeros)(2).tolist() == [0.0, 0.0]
