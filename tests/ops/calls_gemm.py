"""gemm in every mode, against torch in double."""

import importlib
import itertools

import pytest
import torch

from support.ops.operators import CALLED, LAYOUTS, ON_GPU, assert_close, in_mode, laid_out, numbers

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# What the library contains without a GPU.
BUILT_DTYPES = DTYPES if ON_GPU else (torch.float32,)
# m, k, n; some of each are not multiples of a tile or of 16.
SIZES = [
    (1, 1, 1), (64, 16, 64), (65, 33, 63), (3, 100, 130), (130, 128, 16), (1, 300, 5),
    (128, 64, 257),
]  # fmt: skip
EMPTY = [(5, 0, 7), (0, 4, 4), (4, 4, 0)]
LARGE = [(4096, 4096, 4096), (1000, 5000, 333), (2049, 1023, 4097)] if ON_GPU else []


def expected(*given):
    reference = importlib.import_module("ops.gemm.op").gemm_reference
    return reference(*(g.double() if isinstance(g, torch.Tensor) else g for g in given))


def check(run, *given):
    found = run(*given)
    assert found.is_contiguous()
    assert_close(found, expected(*given), given[0].dtype)


def operands(sizes, dtype=torch.float32, stack=(), trans_a=False, trans_b=False):
    m, k, n = sizes
    a = numbers((*stack, k, m) if trans_a else (*stack, m, k), dtype)
    b = numbers((*stack, n, k) if trans_b else (*stack, k, n), dtype, 1)
    return a, b, numbers((*stack, m, n), dtype, 2)


def test_every_mode(call):
    for dtype in BUILT_DTYPES if call.mode == "native" else DTYPES:
        a, b, c = operands((33, 40, 70), dtype)
        check(lambda *given: call("gemm", *given), a, b, c, 0.5, -2.0, False, False)


@pytest.mark.parametrize("sizes", [*SIZES, *EMPTY, *LARGE], ids=str)
@pytest.mark.parametrize("mode", CALLED)
def test_sizes(tree, library, mode, sizes):
    run = in_mode(mode, tree["gemm"], library.gemm)
    for dtype in BUILT_DTYPES if mode == "native" or sizes in LARGE else DTYPES[1:2]:
        a, b, c = operands(sizes, dtype)
        check(run, a, b, None, 1.0, 1.0, False, False)
        check(run, a, b, c, 0.5, -2.0, False, False)


@pytest.mark.parametrize("stack", [(), (3,)], ids=["matrices", "stacks"])
@pytest.mark.parametrize("mode", CALLED)
def test_transposes(tree, library, mode, stack):
    run = in_mode(mode, tree["gemm"], library.gemm)
    dtypes = BUILT_DTYPES if mode == "native" else DTYPES[1:2]
    for dtype, trans_a, trans_b in itertools.product(dtypes, (False, True), (False, True)):
        a, b, c = operands((65, 33, 40), dtype, stack, trans_a, trans_b)
        check(run, a, b, c, 1.5, 0.5, trans_a, trans_b)
        a, b, _ = operands((32, 48, 64), dtype, stack, trans_a, trans_b)
        check(run, a, b, None, 1.5, 0.5, trans_a, trans_b)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", CALLED)
def test_layouts(tree, library, mode, layout):
    run = in_mode(mode, tree["gemm"], library.gemm)
    for stack in [(), (2,)]:
        a, b = laid_out(layout, (*stack, 34, 48)), laid_out(layout, (*stack, 48, 65), seed=1)
        check(run, a, b, None, 1.0, 0.0, False, False)
        check(run, a, numbers((*stack, 48, 65), seed=1), None, 1.0, 0.0, False, False)
    check(run, a, numbers((*stack, 34, 65), seed=1), None, 1.0, 0.0, True, False)


def test_a_matrix_is_multiplied_with_each_of_a_stack(tree):
    (a, b, c), (matrix, other, one) = operands((17, 20, 33), stack=(3,)), operands((17, 20, 33))
    for given in [(a, other), (matrix, b), (a, other, c), (a, b, one), (matrix, other, one)]:
        check(tree["gemm"], *given)


@pytest.mark.parametrize("shape", [(33,), (1,), (17, 1), (1, 33), ()], ids=str)
def test_c_is_broadcast(tree, shape):
    a, b, _ = operands((17, 20, 33))
    check(tree["gemm"], a, b, numbers(shape), 2.0, 3.0)


@pytest.mark.parametrize("mode", CALLED)
def test_c_is_not_read_for_a_beta_of_0(tree, library, mode):
    run = in_mode(mode, tree["gemm"], library.gemm)
    a, b, c = operands((17, 20, 33))
    check(run, a, b, c.fill_(float("nan")), 1.0, 0.0, False, False)


def test_arguments_that_do_not_fit_are_refused(tree):
    a, b, c = operands((5, 6, 7))
    gemm = tree["gemm"]
    with pytest.raises(ValueError, match=r"b must have shape \(6, 6\), found \(7, 6\)"):
        gemm(a, b.mT)
    with pytest.raises(ValueError, match=r"b must have shape \(2, 6, 7\), found \(3, 6, 7\)"):
        gemm(a.expand(2, 5, 6), b.expand(3, 6, 7))
    with pytest.raises(ValueError, match="a and b must have 2 or 3 dimensions, found 1 and 2"):
        gemm(a[0], b)
    with pytest.raises(TypeError, match=r"the same dtype, found torch.float32 and torch.float16"):
        gemm(a, b.half())
    with pytest.raises(TypeError, match=r"a must be fp16, bf16 or fp32, found torch.float64"):
        gemm(a.double(), b.double())
    with pytest.raises(ValueError, match=r"c must broadcast to \(5, 7\), found shape \(5, 3\)"):
        gemm(a, b, c[:, :3])


def test_no_gradient_goes_through_it(tree):
    a, b, _ = operands((5, 6, 7))
    with pytest.raises(Exception, match=r"ops::gemm.*no backward"):
        tree["gemm"](a.requires_grad_(), b).sum().backward()
