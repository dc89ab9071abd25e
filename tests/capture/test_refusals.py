"""Launches that no graph can hold are refused by name, with a way out."""

import re

import pytest
import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

import opforge
from opforge.errors import OpforgeError, UnsupportedBody
from support import launching
from support.launching import (
    affine_at_run_time,
    blocks,
    body_of,
    double,
    double_described,
    graph_of,
    targets,
    tuned,
    with_defaults,
)

Tensor = torch.Tensor
x = torch.ones(8, 128)


@pytest.fixture
def refusal(op_name):
    """The text with which the trace of a body with that launch is refused."""

    def refuse(launch, **options):
        name, body = op_name(), body_of(launch)
        op = opforge.op(body, name=name, **options)
        with pytest.raises(UnsupportedBody) as caught:
            graph_of(op, x)
        assert isinstance(caught.value, RuntimeError)
        assert isinstance(caught.value, OpforgeError)
        text = str(caught.value)
        assert text.startswith(f"{name} ({launching.__file__}:{body.__code__.co_firstlineno}): ")
        return text

    return refuse


def place_of(kernel):
    code = kernel.fn.__code__
    return f"kernel {kernel.fn.__name__} ({launching.__file__}:{code.co_firstlineno})"


@pytest.mark.parametrize(
    ("given", "named", "said"),
    [
        ((), {"BLOCK": 128}, "argument 'n' is missing"),
        ((1024,), {}, "argument 'BLOCK' is missing"),
        ((1024,), {"BLOCK": 128, "BLOCKS": 64}, "it has no parameter 'BLOCKS'"),
        ((1024, 128, 4), {}, "it takes 4 arguments, got 5"),
        ((1024, 128), {"BLOCK": 64}, "argument 'BLOCK' is given twice"),
    ],
)
def test_arguments_that_are_not_the_kernels_are_named(refusal, given, named, said):
    assert f"{place_of(double)}: {said}" in refusal(
        lambda x, out: double[(8,)](x, out, *given, **named)
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [("enable_fp_fusion", False), ("num_ctas", 2)],
)
def test_a_launch_option_that_inductor_would_drop_is_refused(refusal, option, value):
    text = refusal(lambda x, out: double[(8,)](x, out, x.numel(), BLOCK=128, **{option: value}))
    assert f"{place_of(double)}: '{option}' is given at the launch, and Inductor would drop" in text
    assert "fix: leave it out, or register the op opaque: mode='custom_op'" in text


@pytest.mark.parametrize("value", [(2.0, 1.0), [2.0, 1.0]], ids=["tuple", "list"])
def test_a_tuple_for_a_parameter_that_is_not_constexpr_is_refused(refusal, value):
    text = refusal(lambda x, out: affine_at_run_time[(8,)](x, out, x.numel(), value, BLOCK=128))
    kind = type(value).__name__
    assert (
        f"{place_of(affine_at_run_time)}: argument 'ab' is a {kind}, which Inductor cannot pass"
        in text
    )
    assert "annotate it tl.constexpr" in text
    assert "mode='custom_op'" in text


def test_a_descriptor_that_pads_with_nan_is_refused(refusal):
    def launch(x, out):
        padded = TensorDescriptor.from_tensor(x, [8, 32], padding="nan")
        double_described[(1, 4)](padded, TensorDescriptor.from_tensor(out, [8, 32]), 8, 32)

    text = refusal(launch)
    assert "argument 'x_desc' is a tensor descriptor with padding='nan'" in text
    assert "Inductor would drop" in text
    assert "mode='custom_op'" in text


@pytest.fixture(scope="module")
def compiled_double():
    source = triton.compiler.ASTSource(
        double,
        signature={"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"},
        constexprs={(3,): 128},
    )
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415  # needs no GPU

    return triton.compile(source, target=GPUTarget("cuda", 90, 32))


def test_a_compiled_kernel_is_refused(refusal, compiled_double):
    text = refusal(lambda x, out: compiled_double[(8,)](x, out, x.numel()), kernels=[double])
    assert "the body launches double, which is already compiled" in text
    assert "launch the @triton.jit function itself" in text
    assert "mode='custom_op'" in text


needs_config = triton.heuristics({"scale": lambda args: args["BLOCK"] // 32})(
    triton.autotune(launching.CONFIGS, key=["n"])(with_defaults)
)
reads_data = triton.heuristics({"BLOCK": lambda args: int(args["x_ptr"].sum().item())})(double)


def test_an_outermost_heuristic_that_needs_a_config_shows_the_order_that_works(refusal):
    text = refusal(lambda x, out: needs_config[blocks(x.numel())](x, out, x.numel()))
    assert (
        f"{place_of(with_defaults)}: the heuristic for 'scale' needs something that is unknown"
        in text
    )
    assert "found: KeyError: 'BLOCK'" in text
    assert "@triton.autotune over @triton.heuristics over @triton.jit" in text


def test_a_heuristic_that_reads_data_is_refused(refusal):
    text = refusal(lambda x, out: reads_data[(8,)](x, out, x.numel()), mode="triton_op")
    assert f"{place_of(double)}: the heuristic for 'BLOCK' needs something" in text
    assert "let it read only shapes" in text
    assert "mode='custom_op'" in text


def test_a_grid_of_four_dimensions_is_refused_with_the_kernels_name(refusal):
    text = refusal(lambda x, out: double[(1, 1, 1, 1)](x, out, x.numel(), BLOCK=128))
    assert place_of(double) in text
    assert "mode='custom_op'" in text


def test_a_refused_body_can_be_traced_as_opaque(op_name):
    @opforge.op(op_name(), mode="custom_op")
    def op(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        double[(8,)](x, out, x.numel(), BLOCK=128, enable_fp_fusion=False)
        needs_config[blocks(x.numel())](x, out, x.numel())
        return out

    assert targets(graph_of(op, x)) == [op]


def test_a_refused_launch_leaves_nothing_routed(refusal):
    assert re.search(
        "argument 'n' is missing", refusal(lambda x, out: tuned[blocks(x.numel())](x, out))
    )
    assert opforge._compat.launches.current() is None
    assert opforge._compat.driver.current() is None
