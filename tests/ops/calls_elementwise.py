"""add and mul: every dtype, layout and rank, in every mode, against NumPy and torch in double."""

import importlib

import numpy as np
import pytest
import torch

from support.ops.operators import (
    CALLED,
    DEVICE,
    LAYOUTS,
    ON_GPU,
    assert_close,
    in_mode,
    laid_out,
    numbers,
)

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
DTYPES = (*FLOATS, *SIGNED, *UNSIGNED)
# What the library has of add, and of mul: on a GPU everything, elsewhere some.
SOME = (torch.bfloat16, torch.float32, torch.int8, torch.uint64)
OF_ADD = DTYPES if ON_GPU else SOME
OF_MUL = (torch.float32, torch.uint64)
SHAPES = [
    (), (1,), (0,), (7,), (1024,), (1025,), (0, 3), (3, 0), (1, 1), (3, 33), (32, 64), (33, 65),
    (2, 3, 5), (2, 0, 4), (4, 1, 16), (2, 3, 4, 5), (1, 2, 33, 1),
]  # fmt: skip
LARGE = [(1 << 20,), (4096, 4096), (3, 1000, 1001), (8, 16, 128, 129)] if ON_GPU else []
PAIRS = [
    ((3, 4), (4,)), ((3, 1), (1, 4)), ((1,), (2, 3)), ((), (5,)), ((2, 3), ()), ((0, 3), (3,)),
    ((1, 3), (0, 3)), ((2, 1, 4), (3, 1)), ((5, 1, 3, 1), (4, 1, 6)),
]  # fmt: skip


def expected(name, x, y):
    """In NumPy, which has all integer types, or in double precision."""
    reference = getattr(importlib.import_module(f"ops.{name}.op"), f"{name}_reference")
    if x.is_floating_point():
        return reference(x.double(), y.double())
    with np.errstate(over="ignore"):
        return torch.from_numpy(np.asarray(reference(x.cpu().numpy(), y.cpu().numpy())))


def check(found, name, x, y):
    wanted = expected(name, x, y)
    assert found.dtype == x.dtype
    assert found.is_contiguous()
    if x.is_floating_point():
        assert_close(found, wanted)
    else:
        assert found.shape == wanted.shape
        assert np.array_equal(found.cpu().numpy(), wanted.numpy())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", OF_ADD)
def test_add_natively_of_every_dtype_and_layout(library, dtype, layout):
    x, y = laid_out(layout, (5, 33), dtype), laid_out("compact", (5, 33), dtype, 1)
    check(library.add(x, y), "add", x, y)
    check(library.add(y, x), "add", y, x)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_add_of_every_dtype_and_layout(tree, dtype, layout):
    x, y = laid_out(layout, (5, 33), dtype), laid_out("compact", (5, 33), dtype, 1)
    check(tree["add"](x, y), "add", x, y)


@pytest.mark.parametrize("dtype", OF_MUL)
@pytest.mark.parametrize("mode", CALLED)
def test_mul_of_every_layout(tree, library, dtype, mode):
    run = in_mode(mode, tree["mul"], library.mul)
    for layout in LAYOUTS:
        x, y = laid_out(layout, (5, 33), dtype), laid_out("transposed", (5, 33), dtype, 1)
        check(run(x, y), "mul", x, y)


@pytest.mark.parametrize("shape", [*SHAPES, *LARGE], ids=str)
@pytest.mark.parametrize("name", ["add", "mul"])
@pytest.mark.parametrize("mode", CALLED)
def test_shapes(tree, library, mode, name, shape):
    run = in_mode(mode, tree[name], getattr(library, name))
    x, y = numbers(shape), numbers(shape, seed=1)
    check(run(x, y), name, x, y)


@pytest.mark.parametrize("second", LAYOUTS)
@pytest.mark.parametrize("first", LAYOUTS)
@pytest.mark.parametrize("mode", CALLED)
def test_two_layouts(tree, library, mode, first, second):
    run = in_mode(mode, tree["add"], library.add)
    for shape in [(33,), (2, 1, 3, 5)]:
        x, y = laid_out(first, shape), laid_out(second, shape, seed=1)
        check(run(x, y), "add", x, y)


@pytest.mark.parametrize("dtype", OF_MUL)
@pytest.mark.parametrize("name", ["add", "mul"])
def test_every_mode(call, name, dtype):
    x, y = laid_out("transposed", (5, 33), dtype), laid_out("part of rows", (5, 33), dtype, 1)
    check(call(name, x, y), name, x, y)


@pytest.mark.parametrize("shapes", PAIRS, ids=str)
@pytest.mark.parametrize("mode", CALLED)
def test_broadcasting(tree, library, mode, shapes):
    run = in_mode(mode, tree["add"], library.add)
    x, y = numbers(shapes[0]), numbers(shapes[1], seed=1)
    check(run(x, y), "add", x, y)


def test_more_dimensions_than_the_kernel_has(tree):
    x, y = laid_out("permuted", (2, 3, 1, 2, 3, 4)), numbers((2, 3, 1, 2, 3, 4), seed=1)
    check(tree["add"](x, y), "add", x, y)
    check(tree["add"](y, y), "add", y, y)


def test_a_compiled_add_takes_other_sizes(tree):
    run = torch.compile(tree["add"], dynamic=True, fullgraph=True, backend="aot_eager")
    for rows in (3, 5, 1):
        x, y = numbers((rows, 8)), numbers((8,), seed=1)
        check(run(x, y), "add", x, y)


@pytest.mark.parametrize("name", ["add", "mul"])
def test_two_dtypes_are_refused(tree, name):
    with pytest.raises(TypeError, match=r"the same dtype, found torch.float32 and torch.float16"):
        tree[name](numbers((3,)), numbers((3,), torch.float16))


def test_other_dtypes_are_refused(tree):
    """torch adds booleans with `or`; the kernels do not."""
    flag = numbers((3,)) > 0
    with pytest.raises(TypeError, match=r"x and y must be one of fp16, .*, u64, found torch.bool"):
        tree["add"](flag, flag)


def test_shapes_that_do_not_broadcast_are_refused(tree):
    with pytest.raises(RuntimeError, match=r"must match|not broadcastable|not compatible"):
        tree["add"](numbers((3,)), numbers((4,)))


def test_the_outputs_of_a_broadcast_are_described_without_memory(library):
    x, y = numbers((3, 1)), numbers((2, 1, 4), seed=1)
    out = torch.empty((2, 3, 4), device=DEVICE)
    assert library.add(x, y, out=out) is out
    check(out, "add", x, y)
