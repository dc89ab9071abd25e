"""quantize_rows and quantize_blocks, bit by bit what torch computes."""

import functools
import importlib
import itertools

import pytest
import torch

from support.ops.operators import CALLED, DEVICE, LAYOUTS, MODES, ON_GPU, in_mode, laid_out, numbers

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
BUILT_DTYPES = DTYPES if ON_GPU else (torch.float32,)
KINDS = (torch.int8, torch.float8_e4m3fn)
NAMES = ("quantize_rows", "quantize_blocks")
SHAPES = [
    (1,), (3, 1), (5, 33), (2, 128), (3, 300), (2, 3, 130), (2, 1025), (2, 9000), (0, 3), (3, 0),
]  # fmt: skip
LARGE = [(4096, 4096), (33, 16384)] if ON_GPU else []


def check(name, run, x, kind):
    reference = getattr(importlib.import_module("ops.quantize.op"), f"{name}_reference")
    (values, scales), (wanted, expected) = run(x, kind), reference(x, kind)
    assert (values.dtype, scales.dtype) == (kind, torch.float32)
    assert torch.equal(values.view(torch.uint8), wanted.view(torch.uint8))
    assert scales.shape == expected.shape
    assert torch.equal(scales.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("shape", [*SHAPES, *LARGE], ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", CALLED)
def test_shapes(tree, library, mode, name, shape):
    run = in_mode(mode, tree[name], getattr(library, name))
    for dtype, kind in itertools.product(BUILT_DTYPES, KINDS):
        check(name, run, numbers(shape, dtype), kind)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", MODES)
def test_every_mode(tree, library, mode, name, kind):
    # A dtype is not an input of an exported program, but a constant of it.
    op, native = (functools.partial(f, dtype=kind) for f in (tree[name], getattr(library, name)))
    run = in_mode(mode, op, native)
    for dtype in BUILT_DTYPES if mode == "native" else DTYPES[1:2]:
        check(name, lambda x, _: run(x), numbers((3, 140), dtype), kind)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", CALLED)
def test_layouts(tree, library, mode, name):
    run = in_mode(mode, tree[name], getattr(library, name))
    for layout in LAYOUTS:
        check(name, run, laid_out(layout, (3, 140)), torch.int8)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", CALLED)
def test_every_step_and_the_middle_between_steps(tree, library, mode, name, kind):
    """All finite fp16 numbers up to 448, in rows whose scale is exactly 1: ties and subnormals."""
    run = in_mode(mode, tree[name], getattr(library, name))
    top = 127 if kind == torch.int8 else 448
    x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    x = x[x.abs() <= top]
    x = torch.nn.functional.pad(x, (0, -len(x) % 127)).view(-1, 127)
    x = torch.nn.functional.pad(x, (0, 1), value=top).to(DEVICE)
    check(name, run, x if ON_GPU else x[::37], kind)


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_zeros_and_of_next_to_nothing(tree, name):
    x = torch.zeros(4, 130, device=DEVICE)
    x[1, 3], x[2, 3], x[3, 3] = 1e-31, 1e-30, 3e38
    for kind in KINDS:
        check(name, tree[name], x, kind)
        values, scales = tree[name](x, kind)
        assert not values[:2].float().any()
        assert not scales[:2].any()


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_finite_shows_in_the_scale(tree, name):
    x = numbers((3, 100))
    x[0, 5], x[1, 5] = float("nan"), float("-inf")
    _, scales = tree[name](x, torch.float8_e4m3fn)
    assert scales[0].isnan().all()
    assert scales[1].isinf().all()
    assert scales[2].isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_arguments_that_do_not_fit_are_refused(tree, name):
    with pytest.raises(
        TypeError, match=r"must be torch.int8 or torch.float8_e4m3fn, found torch.u"
    ):
        tree[name](numbers((3, 8)), torch.uint8)
    with pytest.raises(TypeError, match=r"x must be fp16, bf16 or fp32, found torch.float64"):
        tree[name](numbers((3, 8)).double())
    with pytest.raises(ValueError, match="x must have rows, found a tensor without dimensions"):
        tree[name](numbers(()))
