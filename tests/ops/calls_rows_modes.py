"""Operators of rows in every mode, and differentiated."""

import pytest
import torch

from support.ops.operators import ON_GPU, assert_close, in_mode, numbers
from support.ops.rows_given import BUILT_DTYPES, DTYPES, NAMES, OPS, arguments, check, reference


@pytest.mark.parametrize("name", OPS)
def test_every_mode(call, name):
    # Inductor takes a second for each.
    for dtype in BUILT_DTYPES if call.mode == "native" else DTYPES[1:]:
        given = arguments(name, (3, 33), dtype, "part of rows")
        check(name, lambda *given: call(name, *given), given)


@pytest.mark.parametrize("name", NAMES)
def test_rows_without_elements(call, name):
    assert call(name, *arguments(name, (3, 0))).shape == (3, 0)
    given = arguments(f"{name}_backward", (3, 0))
    found = call(f"{name}_backward", *given)
    first = found[0] if isinstance(found, tuple) else found
    assert first.shape == given[1].shape


@pytest.mark.parametrize("name", ["rms_norm_backward", "layer_norm_backward"])
def test_no_rows_give_a_weight_no_gradient(call, name):
    _, *grads = call(name, *arguments(name, (0, 5)))
    assert [grad.tolist() for grad in grads] == [[0.0] * 5] * len(grads)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("mode", "dtype"),
    [("eager", torch.float32), ("eager", torch.bfloat16), ("compiled", torch.float32)],
)
def test_gradients(tree, mode, name, dtype):
    x, *more = arguments(name, (3, 48), dtype, "part of rows")
    given = [x, *more]
    tensors = [g for g in given if isinstance(g, torch.Tensor)]
    for tensor in tensors:
        tensor.requires_grad_()
    run = in_mode(mode, tree[name], None)
    factor = numbers((3, 48), dtype, 3)
    found = torch.autograd.grad((run(*given) * factor).sum(), tensors)
    twins = [t.detach().double().requires_grad_() for t in tensors]
    out = reference(name)(*twins, *given[len(tensors) :])
    expected = torch.autograd.grad((out * factor.double()).sum(), twins)
    for one, wanted in zip(found, expected, strict=True):
        # The gradient is computed from softmax's results, which forward rounds.
        assert_close(one, wanted, dtype)


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_of_a_sum(tree, name):
    """It is one number, expanded."""
    x, *more = arguments(name, (3, 40))
    x.requires_grad_()
    (found,) = torch.autograd.grad(tree[name](x, *more).sum(), x)
    twin = x.detach().double().requires_grad_()
    doubled = [m.double() if isinstance(m, torch.Tensor) else m for m in more]
    (expected,) = torch.autograd.grad(reference(name)(twin, *doubled).sum(), twin)
    # A softmax sums to 1 whatever its input, so what is left of its gradient is rounding.
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_twice_is_refused(tree, name):
    x, *more = arguments(name, (3, 40))
    x.requires_grad_()
    (grad,) = torch.autograd.grad(tree[name](x, *more).square().sum(), x, create_graph=True)
    with pytest.raises(Exception, match=f"ops::{name}_backward.*no backward"):
        grad.sum().backward()


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_op_takes_other_numbers_of_rows(tree, name):
    backend = "inductor" if ON_GPU else "aot_eager"
    run = torch.compile(tree[name], dynamic=True, fullgraph=True, backend=backend)
    for rows in (3, 5, 2):
        check(name, run, arguments(name, (rows, 40)))
