"""topk_gating in every mode, against torch in double."""

import importlib

import pytest
import torch

from opforge.errors import NativeCallFailed
from support.ops.operators import CALLED, DEVICE, LIMITS, ON_GPU, in_mode, laid_out, numbers

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
BUILT_DTYPES = DTYPES if ON_GPU else (torch.float32,)
# rows, experts, k
SIZES = [(1, 1, 1), (5, 8, 2), (33, 64, 8), (3, 100, 6), (17, 256, 8), (4, 512, 32), (0, 8, 2)]
LARGE = [(16384, 256, 8), (4096, 160, 6)] if ON_GPU else []


def check(run, logits, k, renormalize=True):
    reference = importlib.import_module("ops.topk_gating.op").topk_gating_reference
    weights, indices = run(logits, k, renormalize)
    wanted, chosen = reference(logits.double(), k, renormalize)
    assert (weights.dtype, indices.dtype) == (torch.float32, torch.int32)
    assert torch.equal(indices, chosen)
    limit = LIMITS[torch.float32]
    torch.testing.assert_close(weights.double(), wanted, rtol=limit, atol=limit)


@pytest.mark.parametrize("size", [*SIZES, *LARGE], ids=str)
@pytest.mark.parametrize("mode", CALLED)
def test_sizes(tree, library, mode, size):
    run = in_mode(mode, tree["topk_gating"], library.topk_gating)
    rows, experts, k = size
    for dtype in BUILT_DTYPES:
        for renormalize in (True, False):
            check(run, numbers((rows, experts), dtype), k, renormalize)


def test_every_mode(call):
    for dtype in BUILT_DTYPES if call.mode == "native" else DTYPES[1:2]:
        run = lambda *given: call("topk_gating", *given)  # noqa: E731  # as the others
        check(run, laid_out("part of rows", (5, 24), dtype), 3)
    check(run, laid_out("transposed", (5, 24)), 3)


@pytest.mark.parametrize("mode", CALLED)
def test_the_lowest_of_equal_experts_is_first(tree, library, mode):
    run = in_mode(mode, tree["topk_gating"], library.topk_gating)
    logits = torch.zeros(3, 20, device=DEVICE)
    logits[0, ::2] = -0.0
    logits[1, 5:8] = 2
    logits[2, 4:] = float("-inf")
    check(run, logits, 7)
    assert run(logits, 7, True)[1][:, :4].tolist() == [[0, 1, 2, 3], [5, 6, 7, 0], [0, 1, 2, 3]]


def test_arguments_that_do_not_fit_are_refused(tree, library):
    gating = tree["topk_gating"]
    for k in (0, 9, 33):
        text = f"k must be from 1 to 32 and at most the 8 experts, found {k}"
        with pytest.raises(ValueError, match=text):
            gating(numbers((3, 8)), k)
    with pytest.raises(ValueError, match="logits must have at most 512 experts, found 513"):
        gating(numbers((3, 513)), 2)
    with pytest.raises(ValueError, match="logits must be a matrix, found 1 dimensions"):
        gating(numbers((8,)), 2)
    with pytest.raises(NativeCallFailed, match="k"):
        library.topk_gating(numbers((3, 8)), 9, True)
