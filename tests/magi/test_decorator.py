"""MagiCompiler's `magi_register_custom_op`: its parameters, what it returns, and its errors."""

import dataclasses
import inspect

import pytest
import torch
import triton

import opforge
from opforge.errors import OpforgeError
from opforge.magi import magi_register_custom_op

Tensor = torch.Tensor


@dataclasses.dataclass(frozen=True)
class Cfg:
    scale: float
    causal: bool = False


@pytest.fixture
def unregistered():
    """Unregisters the ops it is given, for those whose name is made by opforge."""
    made = []
    yield made.append
    for op in made:
        opforge.unregister(op)


def test_it_has_magi_compilers_parameters_in_their_order():
    parameters = inspect.signature(magi_register_custom_op).parameters
    assert [(name, p.default) for name, p in parameters.items()] == [
        ("name", None),
        ("mutates_args", ()),
        ("infer_output_meta_fn", None),
        ("setup_context_fn", None),
        ("backward_fn", None),
        ("is_compute_sensitive", False),
        ("is_subgraph_boundary", False),
        ("extra_triton_kernels", ()),
        ("force_register_mode", None),
        ("max_introspect_depth", 5),
    ]


@triton.jit
def kernel():
    pass


def test_every_parameter_is_taken(op_name):
    def setup_context(ctx, inputs, output):
        ctx.scale = inputs[1].scale

    name = op_name()

    @magi_register_custom_op(
        name=name,
        mutates_args=(),
        infer_output_meta_fn=["x"],
        setup_context_fn=setup_context,
        backward_fn=lambda ctx, grad: (grad * ctx.scale, None),
        is_compute_sensitive=True,
        is_subgraph_boundary=True,
        extra_triton_kernels=(kernel,),
        force_register_mode="custom_op",
        max_introspect_depth=3,
    )
    def scale(x: Tensor, cfg: Cfg) -> Tensor:
        return x * cfg.scale

    info = opforge.info(scale)
    assert info.name == name
    assert (info.compute_sensitive, info.subgraph_boundary) == (True, True)
    assert [k.kernel for k in info.kernels] == [kernel]
    assert info.fake_source == "listed"
    assert info.mode == "custom_op"
    x = torch.ones(2, requires_grad=True)
    scale(x, Cfg(3.0)).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_the_name_is_made_from_the_function_where_none_is_given(unregistered):
    @magi_register_custom_op()
    def magi_named_by_itself(x: Tensor) -> Tensor:
        return x * 2

    unregistered(magi_named_by_itself)
    assert opforge.info(magi_named_by_itself).name == "test_decorator::magi_named_by_itself"


def test_an_unknown_mode_is_a_value_error(op_name):
    with pytest.raises(ValueError, match="force_register_mode='fast' is unknown") as caught:
        magi_register_custom_op(op_name(), force_register_mode="fast")
    assert isinstance(caught.value, OpforgeError)
    assert "'triton_op'" in str(caught.value)


def double(x: Tensor) -> Tensor:
    return x * 2


def test_no_extra_kernels_may_be_none(op_name):
    op = magi_register_custom_op(op_name(), extra_triton_kernels=None)(double)
    assert opforge.info(op).kernels == ()


def test_too_few_gradients_are_counted(op_name):
    @magi_register_custom_op(op_name(), backward_fn=lambda ctx, g: (g,))
    def op(x: Tensor, cfg: Cfg) -> Tensor:
        return x * cfg.scale

    with pytest.raises(ValueError, match="backward_fn returned 1 grad"):
        op(torch.ones(1, requires_grad=True), Cfg(2.0)).backward()


def missing_annotation(x, y: int):
    return x


def dictionary(x: Tensor, options: dict[str, int]) -> Tensor:
    return x


@pytest.mark.parametrize(
    ("fn", "name", "mutated", "text"),
    [
        (missing_annotation, None, (), "parameter 'x': no type annotation"),
        (dictionary, None, (), r"'options'(.|\n)*dict-typed"),
        (double, "bare", (), "namespace"),
        (double, None, ("unknown_name",), "does not match"),
    ],
)
def test_an_error_has_the_class_and_the_words_of_magi_compilers(op_name, fn, name, mutated, text):
    error = ValueError if fn is double else TypeError
    with pytest.raises(error, match=text) as caught:
        magi_register_custom_op(name or op_name(), mutates_args=mutated)(fn)
    assert isinstance(caught.value, OpforgeError)
