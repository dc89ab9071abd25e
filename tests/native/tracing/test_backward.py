"""The declared backward of an op, traced from the op's own declaration."""

from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

import opforge
from opforge import native
from opforge.errors import OpforgeError
from opforge.native.frontend.expand import expand
from opforge.native.tracing.backward import build_backward
from opforge.native.tracing.case_builder import build_case
from opforge.registry import registry
from support.archs import sm
from support.native.torch_bodies import Program

ARCHS = sm(90)


@triton.jit
def silu_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, x / (1 + tl.exp(-x)), mask=at < n)


@triton.jit
def silu_backward_kernel(grad_ptr, x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    grad = tl.load(grad_ptr + at, mask=at < n)
    x = tl.load(x_ptr + at, mask=at < n)
    gate = 1 / (1 + tl.exp(-x))
    tl.store(out_ptr + at, grad * gate * (1 + x * (1 - gate)), mask=at < n)


def silu(x: Tensor) -> Tensor:
    out, n = torch.empty_like(x), x.numel()
    silu_kernel[(triton.cdiv(n, 128),)](x, out, n, BLOCK=128)
    return out


def silu_grad(grad: Tensor, x: Tensor) -> Tensor:
    out, n = torch.empty_like(x), x.numel()
    silu_backward_kernel[(triton.cdiv(n, 128),)](grad, x, out, n, BLOCK=128)
    return out


silu_grad_op = opforge.op(silu_grad, name="backward_tests::silu_grad")


def save_inputs(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


class Planned:
    """An op's backward, called as the library would."""

    def __init__(self, op):
        entry = registry.get(op)
        declared = expand(entry)
        cases = [build_case(entry, declared, case, ARCHS).case for case in declared.cases]
        self.backward = build_backward(entry, declared, cases, ARCHS)
        self.names = [p.name for p in self.backward.params]
        self.outputs = list(self.backward.outputs)

    def __call__(self, *inputs):
        made = self.backward
        cases = [one.case for one in made.built]
        declared = SimpleNamespace(params=made.params, outputs=made.outputs, cases=cases)
        program = Program(None)
        program.body = SimpleNamespace(declared=declared, built=made.built, archs=ARCHS)
        return program(*inputs)


@pytest.fixture
def planned(op_name):
    def plan(fn, backward, setup_context=save_inputs, **specs):
        op = opforge.op(
            fn, name=op_name(), mode="custom_op", backward=backward, setup_context=setup_context
        )
        native.declare(op, **specs)
        return Planned(op)

    return plan


def test_a_backward_of_torch_calls(planned):
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return grad * gate * (1 + x * (1 - gate))

    made = planned(silu, backward, x=native.tensor("...", dtype=("fp16", "fp32"), ranks=(1, 2)))
    assert (made.names, made.outputs) == (["grad_out", "x"], ["grad_x"])
    assert len(made.backward.built) == 4
    x, grad = torch.randn(3, 50, requires_grad=True), torch.randn(3, 50)
    torch.nn.functional.silu(x).backward(grad)
    torch.testing.assert_close(made(grad, x.detach()), x.grad)


@pytest.mark.parametrize("gradient", [silu_grad_op, silu_grad], ids=["op", "function"])
def test_a_backward_that_launches(planned, gradient):
    def backward(ctx, grad):
        return gradient(grad, *ctx.saved_tensors)

    made = planned(silu, backward, x=native.tensor("n", dtype="fp32"))
    assert (made.names, made.outputs) == (["grad_out", "x"], ["grad_x"])
    (case,) = (one.case for one in made.backward.built)
    assert [s.kernel_name for p in case.paths for s in p.steps] == ["silu_backward_kernel"]
    x, grad = torch.randn(200, requires_grad=True), torch.randn(200)
    torch.nn.functional.silu(x).backward(grad)
    torch.testing.assert_close(made(grad, x.detach()), x.grad)


def scaled_exp(x: Tensor, w: Tensor, scale: float) -> Tensor:
    return torch.exp(x) * scale


def test_what_no_path_uses_is_not_a_parameter(planned):
    def backward(ctx, grad):
        _, _, out = ctx.saved_tensors
        return grad * out, None, None

    def save(ctx, inputs, output):
        x, w, ctx.scale = inputs
        ctx.save_for_backward(x, w, output)

    specs = {"x": native.tensor("...", dtype="fp32", ranks=(1, 2)), "scale": native.scalar("fp32")}
    made = planned(
        scaled_exp, backward, save, w=native.tensor("...", dtype="fp32", ranks=(1, 2)), **specs
    )
    assert (made.names, made.outputs) == (["grad_out", "out"], ["grad_x"])
    grad, out = torch.randn(4), torch.randn(4)
    torch.testing.assert_close(made(grad, out), grad * out)
    sizes = {str(size) for one in made.backward.built for t in one.case.tensors for size in t.shape}
    assert sizes == {"grad_out.shape[0]", "grad_out.shape[1]"}


def test_a_gradient_has_the_type_and_shape_of_its_input(planned):
    def shifted(x: Tensor, bias: Tensor) -> Tensor:
        return (x + bias).float()

    made = planned(
        shifted, lambda ctx, grad: (grad, grad), None,
        x=native.tensor("m n", dtype="fp16"), bias=native.tensor("n", dtype="fp16"),
    )  # fmt: skip
    grad = torch.randn(3, 5)
    of_x, of_bias = made(grad)
    torch.testing.assert_close(of_x, grad.half())
    torch.testing.assert_close(of_bias, grad.sum(0).half())


def test_a_gradient_is_summed_where_the_input_has_one_row(planned):
    def scaled(x: Tensor, weight: Tensor) -> Tensor:
        return x * weight

    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad * weight, grad * x

    made = planned(
        scaled, backward,
        x=native.tensor("b m n", dtype="fp32"), weight=native.tensor("1 n", dtype="fp32"),
    )  # fmt: skip
    grad, x = torch.randn(2, 4, 3, 5)
    weight = torch.randn(1, 5, requires_grad=True)
    (x * weight).backward(grad)
    torch.testing.assert_close(made(grad, x, weight.detach())[1], weight.grad)


def test_a_gradient_of_another_shape_is_refused(planned):
    with pytest.raises(OpforgeError, match="it cannot be built") as refused:
        planned(silu, lambda ctx, grad: grad.sum(), x=native.tensor("n", dtype="fp32"))
    assert "backward returned a gradient of shape ()" in refused.value.found


def test_callers_choose_the_strides_of_a_gradient_if_they_choose_those_of_the_output(planned):
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    made = planned(
        doubled, lambda ctx, grad: grad * 2, None, x=native.tensor("m n", dtype="fp32"),
        returns=native.tensor("m n", dtype="fp32", layout="strided"),
    )  # fmt: skip
    grad = torch.randn(4, 3).t()
    torch.testing.assert_close(made(grad), grad * 2)


def test_an_output_with_other_strides_is_refused(planned):
    def turned(x: Tensor) -> Tensor:
        return (x * 2).t()

    with pytest.raises(OpforgeError, match="returns out with strides that are not compact") as no:
        planned(turned, lambda ctx, grad: grad.t() * 2, x=native.tensor("m n", dtype="fp32"))
    assert no.value.found == "[1, n] for [n, m]"


def test_cases_without_a_floating_point_tensor_have_no_backward(planned):
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    made = planned(
        doubled, lambda ctx, grad: grad * 2, None, x=native.tensor("n", dtype=("i32", "fp32"))
    )
    assert [one.case.tensors[0].dtype for one in made.backward.built] == ["fp32"]
    with pytest.raises(OpforgeError, match="declared for no floating-point tensors"):
        planned(doubled, lambda ctx, grad: grad, None, x=native.tensor("n", dtype="i32"))


def test_a_size_that_the_op_computes_is_a_condition(planned):
    def doubled(x: Tensor) -> Tensor:
        return torch.cat([x, x])

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        n = x.shape[0]
        return grad[:n] + grad[n:]

    made = planned(doubled, backward, x=native.tensor("n", dtype="fp32"))
    grad = torch.randn(12)
    assert made.names == ["grad_out", "x"]
    torch.testing.assert_close(made(grad, torch.empty(6)), grad[:6] + grad[6:])
    (case,) = (one.case for one in made.backward.built)
    assert {str(path.guards[0].condition) for path in case.paths} == {"grad_out.shape[0] == 2 * n"}


def test_cases_stay_in_the_order_of_the_op(op_name):
    def doubled(w: Tensor, x: Tensor) -> Tensor:
        return x * 2

    op = opforge.op(
        doubled, name=op_name(), mode="custom_op", backward=lambda ctx, grad: (None, grad * 2)
    )
    for w, x in (("fp16", "fp64"), ("fp16", "fp32"), ("fp32", "fp64")):
        native.declare(op, w=native.tensor("n", dtype=w), x=native.tensor("n", dtype=x))
    found = Planned(op).backward.built
    assert [one.case.tensors[0].dtype for one in found] == ["fp64", "fp32"]


def test_a_choice_stays_if_its_values_differ(planned):
    def chosen(x: Tensor, mode: str, other: bool) -> Tensor:
        return x * 2 if mode == "twice" else x * 3

    def save(ctx, inputs, output):
        ctx.mode = inputs[1]

    def backward(ctx, grad):
        return grad * (2 if ctx.mode == "twice" else 3), None, None

    made = planned(
        chosen, backward, save, x=native.tensor("n", dtype="fp32"),
        mode=native.choice("twice", "thrice"), other=native.choice(False, True),
    )  # fmt: skip
    assert made.names == ["grad_out", "mode"]
    assert [one.case.choices for one in made.backward.built] == [(("mode", 0),), (("mode", 1),)]


def test_an_absent_tensor_has_no_gradient(planned):
    def biased(x: Tensor, bias: Tensor | None) -> Tensor:
        return x * 2 if bias is None else x * 2 + bias

    made = planned(
        biased, lambda ctx, grad: (grad * 2, grad), None, x=native.tensor("n", dtype="fp32"),
        bias=native.optional(native.tensor("n", dtype="fp32")),
    )  # fmt: skip
    assert (made.names, made.outputs) == (["grad_out", "bias"], ["grad_x", "grad_bias"])
    with_bias, without = (one.case.paths[0].outputs for one in made.backward.built)
    assert [o is not None for o in (*with_bias, *without)] == [True, True, True, False]
