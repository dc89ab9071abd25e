"""Autograd with a backward: derivatives of every kind, and what setup_context sees."""

import dataclasses
import enum

import pytest
import torch
import torch.utils.checkpoint
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import opforge
from opforge.errors import MissingBackward
from support.gradients import Pair, Weights, doubles, leaf

Tensor = torch.Tensor


class Mode(enum.Enum):
    SUM = "sum"
    PRODUCT = "product"


@dataclasses.dataclass(frozen=True)
class Result:
    value: Tensor
    squared: Tensor


@pytest.fixture
def cube(op_name):
    """x ** 3 with a backward that is itself differentiable."""

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x * x

    @opforge.op(op_name(), backward=backward, setup_context=setup_context, vmap="sequential")
    def cube(x: Tensor) -> Tensor:
        return x * x * x

    return cube


def test_a_scalar_output_beside_a_tensor_brings_none(op_name):
    seen = []

    def backward(ctx, grad, count):
        seen.append(count)
        return grad * 2

    @opforge.op(op_name(), backward=backward)
    def op(x: Tensor) -> tuple[Tensor, int]:
        return x * 2, x.shape[0]

    x = leaf(3)
    value, count = op(x)
    value.sum().backward()
    assert count == 3
    assert seen == [None]
    assert x.grad.tolist() == [2.0] * 3


@pytest.mark.parametrize(
    "transform",
    [
        torch.func.grad,
        lambda f: torch.func.grad(torch.func.grad(f)),
        torch.func.grad_and_value,
        lambda f: lambda x: torch.func.vjp(f, x)[1](x),
        lambda f: lambda x: torch.func.vmap(torch.func.grad(f))(torch.stack([x, x + 1])),
        lambda f: torch.func.grad(lambda x: torch.func.vmap(f)(torch.stack([x, x + 1])).sum()),
        lambda f: lambda x: torch.func.jacrev(f)(torch.stack([x, x + 1])),
    ],
    ids=["grad", "grad of grad", "and value", "vjp", "vmap of grad", "grad of vmap", "jacrev"],
)
def test_torch_func_takes_it_as_a_plain_function(cube, transform):
    x = torch.tensor(2.0)
    torch.testing.assert_close(transform(cube)(x), transform(lambda x: x**3)(x))


def test_compiled_backward_works_with_dynamic_shapes(cube):
    compiled = torch.compile(cube, backend="aot_eager", fullgraph=True, dynamic=True)
    for size in (3, 5, 7):
        x = torch.full((size,), 2.0, requires_grad=True)
        compiled(x).sum().backward()
        assert x.grad.tolist() == [12.0] * size


@pytest.fixture
def exp(op_name):
    """An op that saves its output."""

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @opforge.op(
        op_name(), backward=lambda ctx, g: g * ctx.saved_tensors[0], setup_context=setup_context
    )
    def exp(x: Tensor) -> Tensor:
        return x.exp()

    return exp


def test_a_saved_output_that_was_changed_in_place_is_noticed(exp):
    y = exp(leaf(2))
    with torch.no_grad():
        y.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_saved_output_is_the_one_the_caller_has_at_every_level(exp):
    assert gradcheck(exp, (doubles(3),))
    assert gradgradcheck(exp, (doubles(3),))
    one = torch.tensor(1.0)
    torch.testing.assert_close(torch.func.grad(torch.func.grad(exp))(one), one.exp())
    x = torch.ones(2)
    ours = torch.func.jacrev(torch.func.jacrev(exp))(x)
    torch.testing.assert_close(ours, torch.func.jacrev(torch.func.jacrev(torch.exp))(x))


def test_setup_context_sees_the_original_inputs_and_output(op_name):
    seen = {}

    def setup_context(ctx, inputs, output):
        seen.update(inputs=inputs, output=output)

    @opforge.op(op_name(), backward=lambda ctx, *grads: (None,) * 5, setup_context=setup_context)
    def op(
        x: Tensor, cfg: Weights, sizes: tuple[int, float], pair: Pair, *, mode: Mode = Mode.SUM
    ) -> Result:
        return Result(x + 1, x * x)

    x, weight = leaf(2), torch.ones(2)
    cfg = Weights(weight, scale=2.0, count=3)
    pair = Pair(torch.zeros(1), torch.ones(1))
    result = op(x, cfg, (4, 0.5), pair, mode=Mode.PRODUCT)
    got_x, got_cfg, got_sizes, got_pair, got_mode = seen["inputs"]
    assert got_x is x
    assert type(got_cfg) is Weights
    assert got_cfg.weight is weight
    assert (got_cfg.bias, got_cfg.scale, got_cfg.count) == (None, 2.0, 3)
    assert got_sizes == (4, 0.5)
    assert type(got_sizes) is tuple
    assert type(got_pair) is Pair
    assert got_pair.right is pair.right
    assert got_mode is Mode.PRODUCT
    assert type(seen["output"]) is Result
    assert type(result) is Result
    torch.testing.assert_close(seen["output"].squared, result.squared)


def test_setup_context_is_not_called_when_nothing_requires_grad(op_name):
    def setup_context(ctx, inputs, output):
        raise AssertionError("not needed")

    @opforge.op(op_name(), backward=lambda ctx, g: g, setup_context=setup_context)
    def op(x: Tensor) -> Tensor:
        return x + 1

    op(torch.ones(2))
    with torch.no_grad():
        op(leaf(2))


@pytest.mark.parametrize("marks", [False, True])
def test_an_integer_output_is_not_differentiable_even_where_that_is_said(op_name, marks):
    def setup_context(ctx, inputs, output):
        if marks:
            ctx.mark_non_differentiable(output[1])

    @opforge.op(op_name(), backward=lambda ctx, g, _: g, setup_context=setup_context)
    def op(x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, x.argsort()

    x = leaf(3)
    value, order = op(x)
    assert not order.requires_grad
    value.sum().backward()
    assert x.grad.tolist() == [1.0] * 3


@pytest.mark.parametrize("materialized", [True, False])
def test_an_unused_output_has_a_zero_gradient_or_none(op_name, materialized):
    seen = []

    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(materialized)

    def backward(ctx, first, second):
        seen.append(second)
        return first

    @opforge.op(op_name(), backward=backward, setup_context=setup_context)
    def op(x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, x * 2

    op(leaf(3))[0].sum().backward()
    assert (seen[0].tolist() if materialized else seen[0]) == ([0.0] * 3 if materialized else None)


def test_grad_mode_is_as_it_was_after_a_body_that_raises(op_name):
    def boom(x: Tensor) -> Tensor:
        raise ValueError("mine")

    for options in ({}, {"backward": lambda ctx, g: g}):
        op = opforge.op(op_name(), **options)(boom)
        with pytest.raises(ValueError, match="mine"):
            op(leaf(2))
        x = leaf(2)
        assert (x * 2).requires_grad
        assert torch.is_grad_enabled()


def test_forward_mode_of_other_tensors_is_allowed(cube):
    with forward_ad.dual_level():
        forward_ad.make_dual(torch.ones(2), torch.ones(2))
        assert cube(torch.ones(2)).tolist() == [1.0, 1.0]
        x = leaf(2)
        cube(x).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_compiled_autograd_gives_the_same_gradients(cube, op_name):
    """With flat arguments, records and lists; the compiler sees all of the backward."""

    def save(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], inputs[1].weight)

    def to_both(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad * weight, {"weight": grad * x}

    @opforge.op(op_name(), backward=to_both, setup_context=save)
    def weighted(x: Tensor, weights: Weights) -> Tensor:
        return x * weights.weight

    @opforge.op(op_name(), backward=lambda ctx, grad: [grad, grad * 2])
    def joined(xs: list[Tensor]) -> Tensor:
        return xs[0] + xs[1] * 2

    x, weight = doubles(3), doubles(3)

    def gradients():
        joined([cube(x), weighted(x, Weights(weight))]).sum().backward()
        found = (x.grad, weight.grad)
        x.grad = weight.grad = None
        return found

    with torch._dynamo.config.patch(compiled_autograd=True):
        compiled = torch.compile(gradients, backend="eager")()
    torch.testing.assert_close(compiled, gradients())


def test_compiled_autograd_refuses_an_op_without_a_backward(op_name):
    @opforge.op(op_name())
    def op(x: Tensor) -> Tensor:
        return x + 1

    x = leaf(3)
    with (
        torch._dynamo.config.patch(compiled_autograd=True),
        pytest.raises(MissingBackward, match=op.name()),
    ):
        torch.compile(lambda: op(x).sum().backward(), backend="eager")()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"backward": 1}, "backward=1 is not callable"),
        ({"setup_context": print}, "setup_context was given without a backward"),
        (
            {"backward": lambda ctx, grad: grad, "mutates_args": ["x"]},
            "an op that mutates its inputs cannot have a backward",
        ),
        ({"vmap": "parallel"}, "vmap='parallel' is neither a rule nor 'sequential'"),
        ({"backward": lambda ctx: None}, "cannot be called as backward(ctx, grad)"),
        (
            {"backward": lambda ctx, grad: grad, "setup_context": 2},
            "setup_context=2 is not callable",
        ),
        (
            {"backward": lambda ctx, grad: grad, "setup_context": lambda ctx, inputs: None},
            "cannot be called as setup_context(ctx, inputs, output)",
        ),
        (
            {"backward": lambda ctx, grad: grad, "setup_context": lambda ctx, output, inputs: None},
            "in the wrong order",
        ),
        ({"tags": "x"}, "tags must be torch.Tag values, got 'x'"),
        ({"mutates_args": True}, "is not a list of parameter names"),
        ({"kernels": 3}, "is not a list"),
    ],
)
def test_an_option_that_would_fail_later_is_refused_at_decoration(options, text, op_name):
    name = op_name()

    def op(x: Tensor) -> Tensor:
        return x + 1

    with pytest.raises(opforge.OpforgeError) as caught:
        opforge.op(name, **options)(op)
    assert text in str(caught.value)
    assert name in str(caught.value)
    opforge.op(name)(op)
