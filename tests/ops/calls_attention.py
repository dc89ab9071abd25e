"""attention, attention_varlen, their gradients and paged_attention, in every mode."""

import importlib

import pytest
import torch

from support.ops.operators import CALLED, DEVICE, ON_GPU, in_mode, numbers

# The last is that of most tests: a GPU's kernels take seconds to compile, and the library contains
# no fp32. The interpreter does not multiply bf16.
HALVES = (torch.float16, torch.bfloat16)
DTYPES = {
    "eager": (torch.float32, *HALVES) if ON_GPU else (torch.float32,),
    "native": HALVES if ON_GPU else HALVES[:1],
}
# batch, heads, shared heads, queries, keys
SIZES = [(1, 2, 1, 40, 40), (2, 2, 2, 1, 33), (1, 2, 1, 33, 5)]
LARGE = [(2, 8, 2, 300, 300), (1, 4, 4, 1000, 77), (1, 2, 1, 128, 640)] if ON_GPU else []
# Lengths of queries and keys, some of them 0.
PACKED = [(5, 9), (17, 17), (0, 4), (30, 2), (3, 0)]
SCALE = 0.125
# Relative errors against double precision.
LIMITS = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def reference(name):
    folder = "paged_attention" if name == "paged_attention" else "attention"
    return getattr(importlib.import_module(f"ops.{folder}.op"), f"{name}_reference")


def close(found, wanted, dtype):
    # A row's error is that of its terms; they are about 1, and cancel in some rows.
    whole = wanted.nan_to_num(posinf=0.0, neginf=0.0)
    scale = whole.square().mean(-1, keepdim=True).sqrt().clamp(min=1.0)
    limit = LIMITS[dtype]
    torch.testing.assert_close(found.double() / scale, wanted / scale, rtol=limit, atol=limit)


def heads(size, head, dtype, layout="dense"):
    """q, k, v and a gradient of (batch, heads, tokens, head)."""
    batch, q_heads, k_heads, queries, keys = size
    shapes = [(batch, q_heads, queries), (batch, k_heads, keys), (batch, k_heads, keys)]
    made = []
    for seed, (first, many, tokens) in enumerate([*shapes, shapes[0]]):
        if layout == "tokens first":
            made.append(numbers((first, tokens, many, head), dtype, seed).transpose(1, 2))
        elif layout == "part of heads":
            made.append(numbers((first, many, tokens, 2 * head), dtype, seed)[..., :head])
        else:
            made.append(numbers((first, many, tokens, head), dtype, seed))
    return made


def check(forward, back, size, head, dtype, *, causal, layout="dense"):
    q, k, v, grad = heads(size, head, dtype, layout)
    precise = [x.double() for x in (q, k, v)]
    wanted = reference("attention")(*precise, causal, SCALE)
    out, lse = forward(q, k, v, causal, SCALE)
    assert out.dtype == dtype
    close(out, wanted[0], dtype)
    close(lse, wanted[1].double(), dtype)
    wanted = reference("attention_backward")(grad.double(), *precise, None, None, causal, SCALE)
    if layout != "dense":
        q, k, v, grad, out = (x.contiguous() for x in (q, k, v, grad, out))
    for found, one in zip(back(grad, q, k, v, out, lse, causal, SCALE), wanted, strict=True):
        close(found, one, dtype)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("size", [*SIZES, *LARGE], ids=str)
@pytest.mark.parametrize("mode", CALLED)
def test_sizes(tree, library, mode, size, causal):
    forward = in_mode(mode, tree["attention"], library.attention)
    back = in_mode(mode, tree["attention_backward"], library.attention_backward)
    is_thorough = mode == "native" or size in {SIZES[0], *LARGE[:1]}
    for dtype in DTYPES[mode] if is_thorough else DTYPES[mode][-1:]:
        for head in (64, 128) if size in LARGE[:1] and mode == "eager" else (128,):
            check(forward, back, size, head, dtype, causal=causal)


@pytest.mark.parametrize("layout", ["tokens first", "part of heads"])
@pytest.mark.parametrize("mode", CALLED)
def test_layouts(tree, library, mode, layout):
    forward = in_mode(mode, tree["attention"], library.attention)
    back = in_mode(mode, tree["attention_backward"], library.attention_backward)
    for dtype in DTYPES[mode]:
        check(forward, back, (2, 2, 1, 20, 35), 128, dtype, causal=True, layout=layout)


@pytest.mark.parametrize("head", [16, 24, 256])
def test_heads_of_other_sizes(tree, head):
    for dtype in DTYPES["eager"] if head == 24 else DTYPES["eager"][-1:]:
        check(tree["attention"], tree["attention_backward"], SIZES[0], head, dtype, causal=True)


def test_an_address_that_is_not_aligned(tree):
    for dtype in DTYPES["eager"]:
        q, k, v, _ = (x[..., 1:65] for x in heads(SIZES[0], 72, dtype))
        wanted = reference("attention")(q.double(), k.double(), v.double(), True, SCALE)
        close(tree["attention"](q, k, v, True, SCALE)[0], wanted[0], dtype)


def test_gradients_of_autograd(tree):
    q, k, v, _ = heads((1, 2, 1, 20, 20), 16, torch.float32)
    given = [x.requires_grad_() for x in (q, k, v)]
    out, lse = tree["attention"](*given, True, SCALE)
    assert not lse.requires_grad
    wanted = reference("attention")(*given, True, SCALE)[0]
    # The gradient of a sum is one number for all.
    for found, one in zip(
        torch.autograd.grad(out.sum(), given), torch.autograd.grad(wanted.sum(), given), strict=True
    ):
        torch.testing.assert_close(found, one)


def packed(dtype, head=128):
    ends = torch.tensor([(0, 0), *PACKED]).cumsum(0).int().to(DEVICE)
    q_starts, k_starts = ends[:, 0].contiguous(), ends[:, 1].contiguous()
    shapes = [(int(q_starts[-1]), 2, head), *[(int(k_starts[-1]), 1, head)] * 2]
    tensors = [numbers(shape, dtype, seed) for seed, shape in enumerate([*shapes, shapes[0]])]
    return tensors, (q_starts, k_starts, 30, 17)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("mode", ["eager", "native"] if ON_GPU else ["eager"])
def test_packed_sequences(tree, library, mode, causal):
    forward = in_mode(mode, tree["attention_varlen"], getattr(library, "attention_varlen", None))
    back = in_mode(
        mode, tree["attention_varlen_backward"], getattr(library, "attention_varlen_backward", None)
    )
    for dtype in DTYPES[mode]:
        (q, k, v, grad), rest = packed(dtype)
        precise = [x.double() for x in (q, k, v)]
        wanted = reference("attention_varlen")(*precise, *rest, causal, SCALE)
        found = forward(q, k, v, *rest, causal, SCALE)
        for one, other in zip(found, wanted, strict=True):
            close(one, other.double(), dtype)
        wanted = reference("attention_varlen_backward")(
            grad.double(), *precise, None, None, *rest, causal, SCALE
        )
        found = back(grad, q, k, v, *found, *rest, causal, SCALE)
        for one, other in zip(found, wanted, strict=True):
            close(one, other, dtype)


def pages(dtype, size, heads_, shared, count):
    """Sequences of all lengths up to what fits into `count` pages of a size."""
    generator = torch.Generator().manual_seed(5)
    table = torch.randperm(3 * count, generator=generator).int().view(3, count).to(DEVICE)
    lengths = torch.tensor([size * count, 0, size * count // 2 + 1]).int().to(DEVICE)
    k, v = (numbers((3 * count, size, shared, 128), dtype, seed) for seed in (1, 2))
    return numbers((3, heads_, 128), dtype), k, v, table, lengths


@pytest.mark.parametrize("given", [(8, 2, 1, 4), (1, 34, 2, 3), (16, 4, 4, 40)], ids=str)
@pytest.mark.parametrize("mode", CALLED)
def test_pages(tree, library, mode, given):
    run = in_mode(mode, tree["paged_attention"], library.paged_attention)
    for dtype in DTYPES[mode]:
        q, k, v, table, lengths = pages(dtype, *given)
        found = run(q, k, v, table, lengths, SCALE)
        wanted = reference("paged_attention")(
            q.double(), k.double(), v.double(), table, lengths, SCALE
        )
        close(found, wanted, dtype)
        assert not found[1].any()


def test_what_is_refused(tree):
    q, k, v, _ = heads((1, 3, 2, 4, 4), 16, torch.float32)
    text = "the heads of q must be a multiple of those of k, found 3 and 2"
    with pytest.raises(ValueError, match=text):
        tree["attention"](q, k, v)
    with pytest.raises(TypeError, match="q, k and v must have the same dtype"):
        tree["attention"](q[:, :2], k.half(), v)
    with pytest.raises(ValueError, match="the elements of a head must lie side by side"):
        tree["attention"](*(x[..., ::2] for x in (q[:, :2], k, v)))
    with pytest.raises(ValueError, match="heads must have 1 to 256 elements, found 300"):
        tree["attention"](*heads((1, 1, 1, 2, 2), 300, torch.float32)[:3])
    with pytest.raises(ValueError, match="heads must have 1 to 256 elements, found 0"):
        tree["attention"](*heads((1, 1, 1, 2, 2), 0, torch.float32)[:3])
    with pytest.raises(ValueError, match="q must have 4 dimensions, found 3"):
        tree["attention"](q[0], k, v)
    with pytest.raises(ValueError, match="found 3 and 0"):
        tree["attention"](q, k[:, :0], v[:, :0])
    (q, k, v, _), (starts, _, *longest) = packed(torch.float32)
    with pytest.raises(TypeError, match="q_starts must be int32 of 1 dimension"):
        tree["attention_varlen"](q, k, v, starts.long(), starts, *longest)
