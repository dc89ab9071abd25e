"""add and mul into outputs of any strides: the shapes, strides and dtypes of InfiniOps' tests."""

import pytest
import torch

from support.ops.operators import DEVICE, LAYOUTS, ON_GPU, laid_out, numbers

# By shape: the strides of x, y and out; None for compact ones.
GRID = [
    ((), None, None, None),
    ((0,), None, None, None),
    ((0, 4), None, None, None),
    ((13, 4), None, None, None),
    ((13, 4), (10, 1), (10, 1), (10, 1)),
    ((13, 4), (0, 1), None, None),
    ((13, 4, 4), None, None, None),
    ((13, 4, 4), (20, 4, 1), (20, 4, 1), (20, 4, 1)),
    ((13, 4, 4), (4, 0, 1), (0, 4, 1), None),
    ((16, 5632), None, None, None),
    ((16, 5632), (13312, 1), (13312, 1), (13312, 1)),
    ((13, 16, 2), (128, 4, 1), (0, 2, 1), (64, 4, 1)),
    ((13, 16, 2), (128, 4, 1), (2, 0, 1), (64, 4, 1)),
    ((4, 4, 5632), None, None, None),
    ((4, 4, 5632), (45056, 5632, 1), (45056, 5632, 1), (45056, 5632, 1)),
]
DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.int16, torch.int32, torch.int64,
    torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip
# What the library has of mul: on a GPU everything, elsewhere some.
OF_MUL = DTYPES if ON_GPU else (torch.float32, torch.uint64)
OPS = [*(("add", dtype) for dtype in DTYPES), *(("mul", dtype) for dtype in OF_MUL)]


def rows_for(op):
    """An interpreted kernel takes a second for one of the large shapes: one op is enough."""
    return [row for row in GRID if ON_GPU or op == OPS[0] or 5632 not in row[0]]


def strided(shape, strides, dtype, seed):
    """Random numbers with these strides, where several elements may be one in memory."""
    if strides is None:
        return numbers(shape, dtype, seed)
    room = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return numbers((room,), dtype, seed).as_strided(shape, strides)


def expected(name, x, y):
    """torch adds and multiplies only some unsigned integers; their low bits are those of int64."""
    wide = torch.float64 if x.is_floating_point() else torch.int64
    x, y = x.to(wide), y.to(wide)
    return x + y if name == "add" else x * y


def check(out, name, x, y):
    wanted = expected(name, x, y).to(out.dtype)
    torch.testing.assert_close(
        *((t.to(torch.float64 if out.is_floating_point() else torch.int64)) for t in (out, wanted)),
        rtol=1e-2 if out.dtype == torch.bfloat16 else 1e-3 if out.dtype == torch.float16 else 1e-6,
        atol=0,
    )


@pytest.mark.parametrize(
    ("name", "dtype", "row"),
    [(*op, row) for op in OPS for row in rows_for(op)],
    ids=str,
)
def test_the_grid(library, name, dtype, row):
    shape, *strides = row
    x, y, out = (strided(shape, s, dtype, seed) for seed, s in enumerate(strides))
    assert getattr(library, name)(x, y, out=out) is out
    check(out, name, x, y)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if not name.startswith("one")])
@pytest.mark.parametrize("shape", [(33,), (5, 33), (2, 3, 17), (2, 1, 3, 5)], ids=str)
def test_an_output_of_every_layout_and_rank(library, layout, shape):
    x, y, out = numbers(shape), laid_out("permuted", shape, seed=1), laid_out(layout, shape)
    library.add(x, y, out=out)
    check(out, "add", x, y)


def test_what_lies_between_the_elements_of_an_output_is_left_alone(library):
    room = torch.full((6, 10), -7.0, device=DEVICE)
    x, y = numbers((6, 4)), numbers((6, 4), seed=1)
    library.add(x, y, out=room[:, 1:9:2])
    check(room[:, 1:9:2], "add", x, y)
    room[:, 1:9:2] = -7.0
    assert room.eq(-7.0).all()


def test_inputs_are_broadcast_to_a_strided_output(library):
    x, y = numbers((3, 1)), numbers((2, 1, 4), seed=1)
    out = laid_out("permuted", (2, 3, 4))
    library.add(x, y, out=out)
    check(out, "add", x, y)


def test_an_output_that_is_not_given_is_contiguous(library):
    x, y = laid_out("transposed", (5, 33)), laid_out("transposed", (5, 33), seed=1)
    assert library.add(x, y).is_contiguous()
