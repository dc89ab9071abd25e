"""Operators of rows and their gradients, in eager and natively."""

import pytest
import torch

from support.ops.operators import CALLED, DEVICE, LAYOUTS, ON_GPU, in_mode, numbers
from support.ops.rows_given import BUILT_DTYPES, DTYPES, NAMES, OPS, arguments, check, reference

SHAPES = [
    (1,), (7,), (1, 1), (3, 1), (1, 33), (5, 33), (8, 64), (2, 1023), (3, 1024), (2, 3, 5),
    (0, 3), (2, 0, 4),
]  # fmt: skip
# Rows of every block, and rows in pieces.
LONG = [(3, 1025), (2, 2049), (3, 4097), (2, 8193)]
LARGE = [(4096, 4096), (1 << 20, 7), (513, 16384), (3, 1_000_001), (8, 512, 1024)] if ON_GPU else []


@pytest.mark.parametrize("shape", [*SHAPES, *LONG, *LARGE], ids=str)
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("mode", CALLED)
def test_shapes(tree, library, mode, name, shape):
    run = in_mode(mode, tree[name], getattr(library, name))
    for dtype in DTYPES if shape in LARGE else (torch.float32,):
        check(name, run, arguments(name, shape, dtype))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("mode", CALLED)
def test_layouts(tree, library, mode, name, layout):
    run = in_mode(mode, tree[name], getattr(library, name))
    for dtype in BUILT_DTYPES:
        check(name, run, arguments(name, (3, 48), dtype, layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPS)
def test_layouts_of_more_dimensions(tree, name, layout):
    """Only matrices may be strided in the library."""
    check(name, tree[name], arguments(name, (2, 3, 17), torch.bfloat16, layout))
    check(name, tree[name], arguments(name, (2, 1, 3, 6), torch.float16, layout))


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("mode", CALLED)
def test_operands_that_lie_differently(tree, library, mode, name):
    run = in_mode(mode, tree[name], getattr(library, name))
    for layout in ("transposed", "part of rows", "one number"):
        first, second = arguments(name, (3, 48)), arguments(name, (3, 48), layout=layout)
        check(name, run, (first[0], *second[1:]))
        check(name, run, (second[0], *first[1:]))


@pytest.mark.parametrize("name", ["silu", "silu_backward"])
@pytest.mark.parametrize("mode", CALLED)
def test_silu_of_one_number_and_of_more_dimensions(tree, library, mode, name):
    run = in_mode(mode, tree[name], getattr(library, name))
    for shape in [(), (2, 3, 4, 5)]:
        check(name, run, tuple(numbers(shape, seed=seed) for seed in range(name.count("_") + 1)))


@pytest.mark.parametrize("mode", CALLED)
@pytest.mark.parametrize("cols", [40, 9000])
def test_softmax_of_minus_infinity(tree, library, mode, cols):
    run = in_mode(mode, tree["softmax"], library.softmax)
    x = numbers((4, cols))
    x[:, : cols - 10] = float("-inf")
    x[0, 0] = 3
    check("softmax", run, (x,))
    assert not run(x)[1:, : cols - 10].any()


@pytest.mark.parametrize("mode", CALLED)
@pytest.mark.parametrize("cols", [40, 9000])
def test_softmax_of_large_numbers(tree, library, mode, cols):
    run = in_mode(mode, tree["softmax"], library.softmax)
    check("softmax", run, (numbers((4, cols)) * 50 + 1e4,))


def test_silu_far_from_zero(tree):
    x = torch.tensor([-80.0, -20.0, -1e-30, 0.0, 1e-30, 20.0, 80.0, 1e30], device=DEVICE)
    found, expected = tree["silu"](x), reference("silu")(x.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", OPS)
def test_double_precision_is_refused(tree, name):
    with pytest.raises(TypeError, match=r"must be fp16, bf16 or fp32, found torch.float64"):
        tree[name](*arguments(name, (3, 8), torch.float64))


@pytest.mark.parametrize("name", [name for name in OPS if name.endswith("_backward")])
def test_a_gradient_of_another_shape_is_refused(tree, name):
    _, *more = arguments(name, (3, 8))
    with pytest.raises(ValueError, match=r"grad must have shape \(3, 8\), found \(3, 7\)"):
        tree[name](numbers((3, 7)), *more)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "silu"])
def test_a_single_number_has_no_rows(tree, name):
    given = (numbers(()), numbers((1,))) if name.endswith("_norm") else (numbers(()),)
    with pytest.raises(ValueError, match="x must have rows, found a tensor without dimensions"):
        tree[name](*given)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_a_weight_of_another_length_is_refused(tree, name):
    with pytest.raises(ValueError, match=r"weight must have shape \(8,\), found \(7,\)"):
        tree[name](numbers((3, 8)), numbers((7,)))


def test_a_bias_of_another_length_is_refused(tree):
    with pytest.raises(ValueError, match=r"bias must have shape \(8,\), found \(7,\)"):
        tree["layer_norm"](numbers((3, 8)), numbers((8,)), numbers((7,)))


@pytest.mark.parametrize("mode", CALLED)
@pytest.mark.parametrize("cols", [40, 9000])
def test_layer_norm_without_a_bias(tree, library, mode, cols):
    run = in_mode(mode, tree["layer_norm"], library.layer_norm)
    check("layer_norm", run, (numbers((4, cols)), numbers((cols,), seed=1), None, 1e-5))


@pytest.mark.parametrize("cols", [40, 9000])
def test_layer_norm_of_numbers_far_from_zero(tree, cols):
    """The variance comes from differences; a difference of mean squares would lose it."""
    x, weight = numbers((4, cols)) / 64 + 1000, numbers((cols,), seed=1)
    out = tree["layer_norm"](x, weight)
    wanted = reference("layer_norm")(x.double(), weight.double())
    torch.testing.assert_close(out.double(), wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("mode", CALLED)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_both_formulas_of_gelu(tree, library, mode, approximate):
    far = torch.tensor([-9.0, -5, -1e-30, 0, 5, 30], device=DEVICE).expand(3, 6)
    x = torch.cat([far, numbers((3, 40))], -1)
    for name, given in [("gelu_and_mul", ()), ("gelu_and_mul_backward", (numbers((3, 23)),))]:
        run = in_mode(mode, tree[name], getattr(library, name))
        check(name, run, (*given, x, approximate))


def test_another_formula_of_gelu_is_refused(tree):
    with pytest.raises(Exception, match="sigmoid"):
        tree["gelu_and_mul"](numbers((3, 8)), "sigmoid")


@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_and_mul"])
def test_an_odd_number_of_columns_has_no_halves(tree, library, name):
    text = "the last dimension of x must be even, found 7"
    with pytest.raises(ValueError, match=text):
        tree[name](numbers((3, 7)))
    with pytest.raises(Exception, match="the last dimension of x must be even"):
        getattr(library, name)(numbers((3, 7)))


def test_a_native_gradient_of_another_width_is_refused(library):
    with pytest.raises(Exception, match="grad must have shape"):
        library.silu_and_mul_backward(numbers((3, 5)), numbers((3, 8)))
