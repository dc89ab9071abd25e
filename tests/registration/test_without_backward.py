"""Ops without a backward: the forward runs, and no gradient ever leaks out of the body."""

import pytest
import torch

import opforge
from opforge.errors import MissingBackward, OpforgeWarning
from support.gradients import leaf, refusal

Tensor = torch.Tensor


def half_op(op_name):
    """The trap: a kernel that autograd cannot see, and an addition that it could."""
    name = op_name()

    def kernel(x):
        return torch.from_numpy(x.detach().numpy() * 3)

    @opforge.op(name, fake=lambda x: x.new_empty(x.shape))
    def half(x: Tensor) -> Tensor:
        out = kernel(x)
        return out + x

    return name, half


def test_going_backward_without_a_backward_raises_naming_the_op_and_the_way_out(op_name):
    name, half = half_op(op_name)
    x = leaf(2)
    out = half(x)
    assert out.tolist() == [4.0, 4.0]
    # PyTorch's fallback would warn that no autograd kernel was registered, which misleads;
    # warnings are errors here.
    with pytest.raises(MissingBackward) as caught:
        out.sum().backward()
    assert x.grad is None
    text = str(caught.value)
    assert text.startswith(f"{name} ({__file__}:")
    assert "@opforge.op(..., backward=fn, setup_context=fn)" in text


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_no_gradient_leaks_from_the_body_when_compiled(op_name, backend):
    name, half = half_op(op_name)
    x = leaf(2)
    compiled = torch.compile(lambda x: half(x) * 2, backend=backend, fullgraph=True)
    said = refusal(lambda: compiled(x).sum().backward())
    assert x.grad is None or not x.grad.any()
    assert name in said


def test_no_gradient_leaks_from_the_body_under_torch_func_grad(op_name):
    name, half = half_op(op_name)
    grads = []
    said = refusal(lambda: grads.append(torch.func.grad(lambda x: half(x).sum())(torch.ones(2))))
    assert name in said
    assert not any(grad.any() for grad in grads)


def test_a_function_that_detaches_the_result_has_its_other_gradients(op_name):
    _, half = half_op(op_name)

    def function(x, y):
        return (half(x).detach() * y).sum()

    x, y = leaf(2), leaf(2)
    torch.compile(function, backend="aot_eager", fullgraph=True)(x, y).backward()
    assert x.grad is None
    assert y.grad.tolist() == [4.0, 4.0]
    assert torch.func.grad(function, argnums=1)(torch.ones(2), torch.ones(2)).tolist() == [4.0, 4.0]


def test_no_gradient_leaks_when_only_a_list_element_requires_grad(op_name):
    @opforge.op(op_name())
    def op(items: list[Tensor], others: list[Tensor | None]) -> Tensor:
        return items[0] + items[1] + (others[1] if others else 0)

    x = leaf(2)
    for arguments in (([torch.ones(2), x], []), ([torch.ones(2)] * 2, [None, x])):
        out = op(*arguments)
        assert out.requires_grad
        with pytest.raises(MissingBackward):
            out.sum().backward()
    assert x.grad is None


def test_without_a_backward_several_outputs_raise_too(op_name):
    @opforge.op(op_name())
    def op(x: Tensor) -> tuple[Tensor, list[Tensor]]:
        return x + 1, [x + 2, x + 3]

    first, rest = op(leaf(2))
    assert isinstance(rest, list)
    for output in (first, *rest):
        with pytest.raises(MissingBackward):
            output.sum().backward(retain_graph=True)


def test_without_a_backward_an_integer_output_needs_no_gradient(op_name):
    @opforge.op(op_name())
    def op(x: Tensor) -> Tensor:
        return x.argsort()

    assert not op(leaf(3)).requires_grad


def test_the_body_sees_no_graph(op_name):
    """Neither with a backward nor without one does the body's own arithmetic get recorded."""
    seen = []

    def body(x: Tensor) -> Tensor:
        y = x * 2
        seen.append((y.requires_grad, y.grad_fn))
        return y

    opforge.op(op_name())(body)(leaf(2))
    opforge.op(op_name(), backward=lambda ctx, g: g)(body)(leaf(2))
    assert seen == [(False, None), (False, None)]


def test_a_captured_tensor_that_requires_grad_gets_no_gradient_and_one_warning(op_name):
    name, weight = op_name(), leaf(2)

    @opforge.op(name)
    def op(x: Tensor) -> Tensor:
        return x * weight

    with pytest.warns(OpforgeWarning, match=f"{name} .*no gradient reaches it"):
        out = op(torch.ones(2))
    assert not out.requires_grad
    assert not op(torch.ones(2)).requires_grad


def test_an_op_without_a_backward_inside_one_with_a_backward_does_no_harm(op_name):
    _, half = half_op(op_name)

    @opforge.op(op_name(), backward=lambda ctx, g: g * 4)
    def outer(x: Tensor) -> Tensor:
        return half(x)

    x = leaf(2)
    outer(x).sum().backward()
    torch.compile(outer, backend="aot_eager", fullgraph=True)(x).sum().backward()
    assert x.grad.tolist() == [8.0, 8.0]
