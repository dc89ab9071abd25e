"""Autograd with a backward: derivatives of every kind, and what setup_context sees."""

import concurrent.futures
import dataclasses
import enum
import warnings
import weakref
from typing import NamedTuple

import pytest
import torch
import torch.utils.checkpoint
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import opforge
from opforge.errors import MissingBackward

Tensor = torch.Tensor


class Mode(enum.Enum):
    SUM = "sum"
    PRODUCT = "product"


@dataclasses.dataclass(frozen=True)
class Weights:
    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    count: int = 1


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@dataclasses.dataclass(frozen=True)
class Result:
    value: Tensor
    squared: Tensor


def doubles(*shape):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


def leaf(*shape):
    return torch.ones(*shape).requires_grad_()


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


def test_gradcheck_passes(cube):
    assert gradcheck(cube, (doubles(3),))


def test_gradcheck_passes_for_complex_numbers(op_name):
    @opforge.op(op_name(), backward=lambda ctx, g: g * 2)
    def double(x: Tensor) -> Tensor:
        return x * 2

    assert gradcheck(double, (torch.randn(3, dtype=torch.complex128, requires_grad=True),))


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


def test_anomaly_mode_works(cube):
    x = leaf(2)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Anomaly Detection has been enabled")
        with torch.autograd.set_detect_anomaly(True):
            cube(x).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_double_backward_passes_gradgradcheck(cube):
    assert gradgradcheck(cube, (doubles(3),))


def test_third_derivative_is_right(cube):
    x = torch.tensor(2.0, requires_grad=True)
    (first,) = torch.autograd.grad(cube(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first, x, create_graph=True)
    (third,) = torch.autograd.grad(second, x)
    assert (first.item(), second.item(), third.item()) == (12.0, 12.0, 6.0)


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


def test_torch_func_grad_inside_an_ordinary_graph_reaches_the_outer_leaf(cube):
    x = torch.tensor(2.0, requires_grad=True)
    torch.func.grad(cube)(x).backward()
    assert x.grad.item() == 12.0


def test_compiled_backward_works_through_inductor(cube):
    compiled = torch.compile(lambda x: cube(x * 2) + 1, fullgraph=True)
    x = leaf(4)
    compiled(x).sum().backward()
    assert x.grad.tolist() == [24.0] * 4


def test_compiled_backward_works_with_dynamic_shapes(cube):
    compiled = torch.compile(cube, backend="aot_eager", fullgraph=True, dynamic=True)
    for size in (3, 5, 7):
        x = torch.full((size,), 2.0, requires_grad=True)
        compiled(x).sum().backward()
        assert x.grad.tolist() == [12.0] * size


def test_backward_runs_twice_with_retain_graph(cube):
    x = torch.tensor(2.0, requires_grad=True)
    y = cube(x)
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.item() == 24.0


def test_backward_a_second_time_without_retain_graph_raises_torchs_own_error(cube):
    y = cube(torch.tensor(2.0, requires_grad=True))
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


def test_a_saved_tensor_that_was_changed_in_place_is_noticed(cube):
    base = torch.tensor(2.0, requires_grad=True)
    x = base * 1
    y = cube(x)
    with torch.no_grad():
        x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


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


def test_saved_tensor_hooks_see_what_setup_context_saves(cube):
    packed = []

    def pack(tensor):
        packed.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        cube(leaf(5))
    assert packed == [torch.Size([5])]


def test_hooks_on_inputs_and_outputs_fire_once(cube):
    seen = []
    x = leaf(2)
    x.register_hook(lambda grad: seen.append(("input", grad.tolist())))
    y = cube(x)
    y.register_hook(lambda grad: seen.append(("output", grad.tolist())))
    y.sum().backward()
    assert seen == [("output", [1.0, 1.0]), ("input", [3.0, 3.0])]


def test_checkpointing_recomputes_the_op(cube):
    x = leaf(3)
    torch.utils.checkpoint.checkpoint(
        lambda x: cube(cube(x)), x, use_reentrant=False
    ).sum().backward()
    assert x.grad.tolist() == [9.0] * 3


def test_once_differentiable_backward_refuses_a_second_derivative(op_name):
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return grad * 2

    @opforge.op(op_name(), backward=backward)
    def double(x: Tensor) -> Tensor:
        return x * 2

    x = leaf(2)
    double(x).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    (grad,) = torch.autograd.grad((double(x) ** 2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


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


def test_setup_context_sees_defaults_that_the_caller_left_out(op_name):
    seen = []

    def setup_context(ctx, inputs, output):
        seen.append(inputs[1:])

    @opforge.op(op_name(), backward=lambda ctx, g: (g, None, None), setup_context=setup_context)
    def op(x: Tensor, factor: float = 2.5, *, flip: bool = True) -> Tensor:
        return x * factor

    op(leaf(2))
    op(leaf(2), 3.0, flip=False)
    assert seen == [(2.5, True), (3.0, False)]


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


def test_modes_without_grad_record_nothing(cube):
    with torch.no_grad():
        assert not cube(leaf(2)).requires_grad
        with torch.enable_grad():
            assert cube(leaf(2)).requires_grad
    with torch.inference_mode():
        x = torch.ones(2)
        assert cube(x).is_inference()
        assert not cube(leaf(2)).requires_grad
    assert cube(x).tolist() == [1.0, 1.0]


def test_an_inference_tensor_beside_one_that_requires_grad_works(op_name):
    @opforge.op(op_name(), backward=lambda ctx, g: (g, None))
    def add(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    with torch.inference_mode():
        y = torch.ones(2)
    x = leaf(2)
    add(x, y).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]


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


def test_an_op_inside_an_autograd_function_works(cube):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return cube(x) * 2

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 6 * x * x

    assert gradcheck(Twice.apply, (doubles(3),))


def test_an_op_may_call_another_op_in_its_body_and_in_its_backward(cube, op_name):
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (3 * x * x + cube(x) * 0)

    @opforge.op(op_name(), backward=backward, setup_context=setup_context)
    def outer(x: Tensor) -> Tensor:
        return cube(x) + 0

    assert gradcheck(outer, (doubles(3),))
    assert gradgradcheck(outer, (doubles(3),))


def test_forward_mode_is_refused_by_name(op_name):
    """A body that is only partly visible would give half a tangent."""
    name = op_name()

    @opforge.op(name, backward=lambda ctx, g: g * 4)
    def half(x: Tensor) -> Tensor:
        return x.detach() * 3 + x

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(2), torch.ones(2))
        with pytest.raises(MissingBackward, match=name) as caught:
            half(dual)
    assert "torch.func.vjp" in str(caught.value)


def test_forward_mode_of_other_tensors_is_allowed(cube):
    with forward_ad.dual_level():
        forward_ad.make_dual(torch.ones(2), torch.ones(2))
        assert cube(torch.ones(2)).tolist() == [1.0, 1.0]
        x = leaf(2)
        cube(x).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_hundreds_of_calls_keep_nothing_alive(cube, collect):
    x = leaf(2)
    first = weakref.ref(cube(x).grad_fn)
    for _ in range(100):
        cube(x).sum().backward()
    collect()
    assert first() is None


def test_backward_in_another_thread_works(cube):
    x = leaf(2)
    y = cube(x).sum()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(y.backward).result()
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
