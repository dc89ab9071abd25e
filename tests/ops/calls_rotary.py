"""rotary: both styles, with positions and without, in every mode, against torch in double."""

import importlib

import pytest
import torch

from opforge.errors import NativeCallFailed
from support.ops.operators import CALLED, DEVICE, ON_GPU, assert_close, double, in_mode, numbers

STYLES = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
# Of q and k, and of the tables.
DTYPES = [
    (torch.float32, torch.float32),
    (torch.float16, torch.float32),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float16),
    (torch.bfloat16, torch.bfloat16),
]
# The ones in the library; without a GPU it has few kernels.
NATIVE = DTYPES if ON_GPU else DTYPES[:1]
# tokens, heads of q, heads of k, elements of a head, pairs that are rotated
SIZES = [
    ((1,), 1, 1, 2, 1), ((3,), 2, 1, 64, 32), ((5,), 9, 3, 128, 64), ((2, 3), 4, 4, 34, 17),
    ((2,), 17, 2, 80, 33), ((2, 1), 1, 1, 256, 128), ((0,), 2, 2, 8, 4), ((2, 0), 2, 2, 8, 4),
    ((3,), 0, 2, 8, 4), ((3,), 2, 0, 8, 4), ((4,), 3, 1, 96, 16), ((2, 3), 5, 1, 48, 8),
]  # fmt: skip
LARGE = [((4096,), 32, 8, 128, 64), ((4, 1024), 32, 32, 128, 64), ((1 << 15,), 5, 1, 64, 16)]


def tables(rows, half, dtype=torch.float32):
    angles = torch.arange(rows)[:, None] * 10000.0 ** (-torch.arange(half) / max(half, 1))
    return angles.cos().to(dtype).to(DEVICE), angles.sin().to(dtype).to(DEVICE)


def places(tokens, rows):
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, rows, tokens, generator=generator).to(DEVICE)


def inputs(size, dtype=torch.float32, table=torch.float32, rows=None):
    tokens, q_heads, k_heads, dim, half = size
    q = numbers((*tokens, q_heads, dim), dtype)
    k = numbers((*tokens, k_heads, dim), dtype, seed=1)
    return q, k, *tables(rows or max(tokens[-1], 1), half, table)


def check(run, q, k, cos, sin, *rest):
    """q and k are changed as the reference says, and nothing around them is."""
    reference = importlib.import_module("ops.rotary.op").both_rotated
    expected = reference(*map(double, (q, k, cos, sin)), *rest)
    assert run(q, k, cos, sin, *rest) is None
    for found, wanted in zip((q, k), expected, strict=True):
        assert_close(found, wanted)


@pytest.fixture(params=CALLED)
def run(request, tree, library):
    return in_mode(request.param, tree["rotary"], library.rotary)


@STYLES
@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
@pytest.mark.parametrize("placed", [False, True], ids=["in order", "placed"])
def test_every_dtype(tree, library, dtypes, placed, interleaved):
    runs = [tree["rotary"], *([library.rotary] if dtypes in NATIVE else [])]
    for run in runs:
        q, k, cos, sin = inputs(((3,), 5, 2, 64, 32), *dtypes, rows=11)
        check(run, q, k, cos, sin, places((3,), 11) if placed else None, interleaved)


@STYLES
@pytest.mark.parametrize("size", [*SIZES, *(LARGE if ON_GPU else [])], ids=str)
def test_sizes(run, size, interleaved):
    q, k, cos, sin = inputs(size)
    check(run, q, k, cos, sin, None, interleaved)
    check(run, q, k, cos, sin, places(size[0], len(cos)), interleaved)


@STYLES
def test_every_mode(call, interleaved):
    q, k, cos, sin = inputs(((2, 3), 5, 2, 64, 32), rows=9)
    check(lambda *args: call("rotary", *args), q, k, cos, sin, places((2, 3), 9), interleaved)
    check(lambda *args: call("rotary", *args), q, k, cos, sin, None, interleaved)


LAYOUTS = {
    "parts of one tensor": lambda b, t, h, d: numbers((b, t, 3 * h, d)).split(h, 2)[:2],
    "heads before tokens": lambda b, t, h, d: numbers((2, b, h, t, d)).transpose(2, 3),
    "tokens before batch": lambda b, t, h, d: numbers((2, t, b, h, d)).transpose(1, 2),
    "part of each head": lambda b, t, h, d: numbers((2, b, t, h, 2 * d))[..., d:],
    "not aligned": lambda b, t, h, d: numbers((2, b * t * h * d + 1))[:, 1:].view(2, b, t, h, d),
    "every other head": lambda b, t, h, d: numbers((2, b, t, 2 * h, d))[..., ::2, :],
}


@STYLES
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(run, layout, interleaved):
    q, k = LAYOUTS[layout](2, 3, 4, 64)
    check(run, q, k, *tables(3, 32), None, interleaved)
    # Without a batch.
    q, k = LAYOUTS[layout](1, 3, 4, 32)
    check(run, q[0], k[0], *tables(5, 16), places((3,), 5), interleaved)


def test_what_lies_between_is_left_alone(run):
    room = numbers((2, 3, 8, 64))
    before = room.clone()
    q, k = room[:, :, :2, :32], room[:, :, 4:6, 32:]
    check(run, q, k, *tables(3, 16), None, False)
    changed = (room != before).nonzero()
    assert {(h // 2, d // 32) for _, _, h, d in changed.tolist()} <= {(0, 0), (2, 1)}


def test_elements_beyond_the_pairs_are_left_alone(run):
    q, k, cos, sin = inputs(((4,), 3, 2, 96, 16))
    before = q.clone()
    run(q, k, cos, sin, None, False)
    assert torch.equal(q[..., 32:], before[..., 32:])


def refused(tree, text, *args):
    with pytest.raises((ValueError, TypeError)) as raised:
        tree["rotary"](*args)
    assert str(raised.value) == text


def test_arguments_that_do_not_fit_are_refused(tree):
    q, k, cos, sin = inputs(((3,), 4, 2, 8, 4))
    start = "q and k must have 3 or 4 dimensions, cos and sin 2; found "
    refused(tree, f"{start}2, 3, 2 and 2", q[0], k, cos, sin)
    refused(tree, f"{start}3, 3, 1 and 2", q, k, cos[0], sin)
    refused(
        tree,
        "q and k must have the same dtype, and so must cos and sin; found torch.float32 and "
        "torch.float16, torch.float32 and torch.float32",
        q, k.half(), cos, sin,
    )  # fmt: skip
    whole = [t.int() for t in (q, k)]
    refused(
        tree,
        "q, k, cos and sin must be fp16, bf16, fp32 or fp64; found torch.int32 and torch.float32",
        *whole, cos, sin,
    )  # fmt: skip
    refused(tree, "positions must be i32 or i64; found torch.float32", q, k, cos, sin, q[:, 0, 0])
    refused(
        tree,
        "q and k must have the same shape except for heads, cos and sin the same; found "
        "(3, 4, 8) and (2, 2, 8), (3, 4) and (3, 4)",
        q, k[1:], cos, sin,
    )  # fmt: skip
    refused(
        tree,
        "positions must have the shape of the tokens, (3,); found (2,)",
        q,
        k,
        cos,
        sin,
        places((2,), 3),
    )
    sideways = q.transpose(1, 2).contiguous().transpose(1, 2)
    refused(tree, "the last dimension of q and k must have a stride of 1", sideways, k, cos, sin)
    refused(tree, "4 pairs do not fit into heads of 6 elements", q[..., :6], k[..., :6], cos, sin)
    refused(
        tree,
        "cos and sin must have a row per token; found 2 rows for 3 tokens",
        q,
        k,
        cos[:2],
        sin[:2],
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda q, k, cos, sin: (q, k, cos[:2], sin[:2]), "t[0] <= table"),
        (lambda q, k, cos, sin: (q[..., :6], k[..., :6], cos, sin), "2 * half <= dim"),
        (lambda q, k, cos, sin: (q.transpose(1, 2).contiguous().mT, k, cos, sin), "stride[2] == 1"),
    ],
)
def test_c_refuses_the_same(library, change, said):
    with pytest.raises(NativeCallFailed) as failed:
        library.rotary(*change(*inputs(((3,), 4, 2, 8, 4))), None, False)
    assert failed.value.status == "UNCOVERED"
    assert said in str(failed.value)


@STYLES
def test_double_precision_and_short_positions_in_eager(tree, interleaved):
    q, k, cos, sin = inputs(((3,), 5, 2, 64, 32), torch.float64, torch.float64)
    check(tree["rotary"], q, k, cos, sin, places((3,), 3).int(), interleaved)
