"""cross_entropy, its gradient, and both in place, in every mode, against torch in double."""

import importlib

import pytest
import torch

from support.ops.operators import CALLED, DEVICE, LIMITS, ON_GPU, in_mode, laid_out, numbers

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
BUILT_DTYPES = DTYPES if ON_GPU else (torch.float32,)
NAMES = ("cross_entropy", "cross_entropy_backward", "cross_entropy_in_place")
SIZES = [(1, 1), (3, 5), (5, 33), (2, 4096), (3, 9001), (0, 7)]
LARGE = [(4096, 32_000), (17, 128_256)] if ON_GPU else []


def targets(rows, cols, ignored=-100):
    generator = torch.Generator().manual_seed(5)
    target = torch.randint(0, max(cols, 1), (rows,), generator=generator)
    target[1::3] = ignored
    return target.to(DEVICE)


def close(found, wanted, dtype):
    assert found.dtype == dtype
    limit, kind = LIMITS[dtype], torch.finfo(dtype)
    atol = limit * wanted.abs().max().item() if wanted.numel() else 0
    atol += kind.smallest_normal * kind.eps
    torch.testing.assert_close(found.double(), wanted, rtol=limit, atol=atol)


def check(runs, logits, target, ignore_index=-100):
    forward, back, in_place = runs
    module = importlib.import_module("ops.cross_entropy.op")
    twin = logits.double()
    close(
        forward(logits, target, ignore_index),
        module.cross_entropy_reference(twin, target, ignore_index),
        torch.float32,
    )
    grad = numbers(target.shape, seed=1)
    wanted = module.cross_entropy_backward_reference(grad.double(), twin, target, ignore_index)
    close(back(grad, logits, target, ignore_index), wanted, logits.dtype)
    for reduction in ("mean", "sum"):
        room, expected = logits.contiguous().clone(), logits.double()
        shares = module.cross_entropy_in_place_reference(expected, target, ignore_index, reduction)
        close(in_place(room, target, ignore_index, reduction), shares, torch.float32)
        close(room, expected, logits.dtype)


@pytest.fixture(params=CALLED)
def runs(request, tree, library):
    return [in_mode(request.param, tree[name], getattr(library, name)) for name in NAMES]


@pytest.mark.parametrize("size", [*SIZES, *LARGE], ids=str)
def test_sizes(runs, size):
    for dtype in BUILT_DTYPES:
        check(runs, numbers(size, dtype), targets(*size))


def test_every_mode(call):
    runs = [lambda *given, name=name: call(name, *given) for name in NAMES]
    for dtype in BUILT_DTYPES if call.mode == "native" else DTYPES[1:2]:
        check(runs, numbers((5, 40), dtype), targets(5, 40, 7), 7)


@pytest.mark.parametrize("layout", ["part of rows", "transposed"])
def test_other_strides(runs, layout):
    logits, target = laid_out(layout, (6, 48)), targets(6, 48)
    check(runs, logits, target)
    if layout == "part of rows":
        logits = laid_out(layout, (6, 48))
        outside = logits.as_strided((6, 16), (64, 1), 48).clone()
        runs[2](logits, target, -100, "sum")
        assert torch.equal(logits.as_strided((6, 16), (64, 1), 48), outside)


def test_the_mean_is_that_of_torch(runs):
    logits, target = numbers((7, 40)), targets(7, 40)
    twin = logits.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(twin, target)
    (wanted,) = torch.autograd.grad(loss, twin)
    close(runs[2](logits, target, -100, "mean").sum(), loss.double(), torch.float32)
    close(logits, wanted.double(), torch.float32)


def test_if_all_rows_are_ignored_the_loss_is_zero(runs):
    logits, target = numbers((3, 40)), torch.full((3,), -100, device=DEVICE)
    assert not runs[2](logits, target, -100, "mean").any()
    assert not logits.any()


def test_a_target_that_is_no_column_gives_nan(runs):
    logits = numbers((4, 40))
    target = torch.tensor([3, 40, -1, 2**40], device=DEVICE)
    assert runs[0](logits, target, -100).isnan().tolist() == [False, True, True, True]
    gradient = runs[1](numbers((4,)), logits, target, -100)
    assert gradient.isnan().all(1).tolist() == gradient.isnan().any(1).tolist()
    assert gradient.isnan().any(1).tolist() == [False, True, True, True]


def test_large_numbers_and_minus_infinity(runs):
    logits = numbers((4, 9000)) * 50 + 1e4
    logits[:, 10:8000] = float("-inf")
    check(runs, logits, torch.tensor([0, 9, 8000, -100], device=DEVICE))


def test_gradients(tree):
    logits, target = numbers((6, 40)).requires_grad_(), targets(6, 40)
    factor = numbers((6,), seed=2)
    (found,) = torch.autograd.grad((tree["cross_entropy"](logits, target) * factor).sum(), logits)
    losses = torch.nn.functional.cross_entropy(logits, target, reduction="none")
    (wanted,) = torch.autograd.grad((losses * factor).sum(), logits)
    close(found, wanted.double(), torch.float32)


def test_arguments_that_do_not_fit_are_refused(tree):
    logits, target = numbers((6, 40)), targets(6, 40)
    with pytest.raises(TypeError, match=r"target must be i64, found torch.int32"):
        tree["cross_entropy"](logits, target.int())
    with pytest.raises(ValueError, match=r"target must have shape \(6,\), found \(5,\)"):
        tree["cross_entropy"](logits, target[1:])
    with pytest.raises(ValueError, match="logits must be a matrix, found 1 dimensions"):
        tree["cross_entropy"](logits[0], target)
    with pytest.raises(ValueError, match="the rows of logits must be dense"):
        tree["cross_entropy_in_place"](logits.t().contiguous().t(), target)
