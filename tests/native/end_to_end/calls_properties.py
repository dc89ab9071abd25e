"""Random shapes, strides, offsets and dtypes against torch."""

import ops as examples
import pytest
import torch

from support.native.calling import check, moved_by

pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FLOATS = st.sampled_from((torch.float16, torch.bfloat16, torch.float32))
HALVES = st.sampled_from((torch.float16, torch.bfloat16))
fast = settings(
    max_examples=60,
    deadline=None,
    # The library is the same for all examples, and keeps nothing between calls.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def numbers(shape, dtype, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


seeds = st.integers(0, 2**31)
offsets = st.integers(0, 9)


@st.composite
def matrices(draw, rows, cols, dtype):
    """Any strides that torch has: in either order, with gaps, expanded, at an offset."""
    steps = [0 if draw(st.booleans()) and draw(st.booleans()) else 1 for _ in "rc"]
    sizes = [n if step else 1 for n, step in zip((rows, cols), steps, strict=True)]
    gaps = [draw(st.integers(1, 3)) for _ in "rc"]
    room = [n * gap for n, gap in zip(sizes, gaps, strict=True)]
    base = numbers((room[0] * room[1] + 9,), dtype, draw(seeds))[draw(offsets) :]
    if draw(st.booleans()):
        whole = base[: room[0] * room[1]].view(room[1], room[0]).t()
    else:
        whole = base[: room[0] * room[1]].view(room[0], room[1])
    return whole[:: gaps[0], :: gaps[1]].expand(rows, cols)


@fast
@given(st.lists(st.integers(0, 12), min_size=1, max_size=4), FLOATS, offsets, seeds)
def test_silu(ops, shape, dtype, offset, seed):
    check(ops, "silu", moved_by(numbers(shape, dtype, seed), offset))


@fast
@given(st.data(), st.integers(0, 9), st.integers(0, 40), FLOATS)
def test_add(ops, data, rows, cols, dtype):
    x, y = (data.draw(matrices(rows, cols, dtype)) for _ in "xy")
    check(ops, "add", x, y)


@fast
@given(st.integers(0, 3), st.integers(1, 1100), FLOATS, offsets, seeds, st.floats(1e-6, 10))
def test_rms_norm(ops, rows, hidden, dtype, offset, seed, eps):
    x = moved_by(numbers((rows, hidden), dtype, seed), offset)
    check(ops, "rms_norm", x, numbers((hidden,), dtype, seed + 1), eps)


@fast
@given(st.lists(st.integers(0, 3), max_size=2), st.integers(0, 1100), FLOATS, offsets, seeds)
def test_softmax(ops, shape, cols, dtype, offset, seed):
    check(ops, "softmax", moved_by(3 * numbers((*shape, cols), dtype, seed), offset))


@fast
@given(st.data(), st.tuples(*[st.integers(0, 70)] * 3), HALVES, st.floats(-2, 2, width=16))
def test_gemm(ops, data, sizes, dtype, alpha):
    m, k, n = sizes
    a, b = data.draw(matrices(m, k, dtype)), data.draw(matrices(k, n, dtype))
    found = ops.one("gemm", a, b, alpha)
    expected = examples.gemm_reference(a, b, alpha)
    # A sum of k products of numbers of size 1: rounded once, but summed in another order.
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
