"""embedding and the gradient of its table, in every mode, against torch."""

import importlib

import pytest
import torch

from support.ops.operators import CALLED, DEVICE, ON_GPU, assert_close, in_mode, laid_out, numbers

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# What the library contains without a GPU.
BUILT_DTYPES = DTYPES if ON_GPU else (torch.float32,)
BUILT_INDICES = (torch.int32, torch.int64) if ON_GPU else (torch.int64,)
# entries, elements of each, shape of the indices
SIZES = [(1, 1, (1,)), (7, 33, (5,)), (20, 64, (2, 9)), (3, 4100, (4,)), (4, 8, (0,)), (4, 0, (3,))]
LARGE = [(128_000, 512, (4096,)), (50, 4096, (16, 1024))] if ON_GPU else []


def places(entries, shape, dtype=torch.int64):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, entries, shape, generator=generator).to(dtype).to(DEVICE)


def check(forward, back, size, dtype=torch.float32, kind=torch.int64):
    entries, hidden, shape = size
    table, indices = numbers((entries, hidden), dtype), places(entries, shape, kind)
    grad = numbers((*shape, hidden), dtype, 1)
    assert torch.equal(forward(table, indices), table[indices.long()])
    module = importlib.import_module("ops.embedding.op")
    # torch's kernel for a GPU takes no rows without elements.
    wanted = torch.zeros(entries, 0, dtype=torch.float64, device=DEVICE)
    if hidden:
        wanted = module.embedding_backward_reference(grad.double(), indices.long(), entries)
    found = back(grad, indices, entries)
    assert found.dtype == dtype
    assert_close(found, wanted)
    return found


@pytest.mark.parametrize("size", [*SIZES, *LARGE], ids=str)
@pytest.mark.parametrize("mode", CALLED)
def test_sizes(tree, library, mode, size):
    forward = in_mode(mode, tree["embedding"], library.embedding)
    back = in_mode(mode, tree["embedding_backward"], library.embedding_backward)
    for dtype in BUILT_DTYPES:
        for kind in BUILT_INDICES if mode == "native" else (torch.int32,):
            check(forward, back, size, dtype, kind)


def test_the_gradient_is_the_same_each_time(tree):
    given = numbers((200, 64), torch.bfloat16), places(3, (200,)), 3
    assert torch.equal(tree["embedding_backward"](*given), tree["embedding_backward"](*given))


def test_every_mode(call):
    is_native = call.mode == "native"
    for dtype in BUILT_DTYPES if is_native else DTYPES[1:]:
        check(
            lambda *given: call("embedding", *given),
            lambda *given: call("embedding_backward", *given),
            (9, 40, (2, 8)),
            dtype,
            BUILT_INDICES[-1] if is_native else torch.int32,
        )


@pytest.mark.parametrize("mode", CALLED)
def test_an_index_outside_of_the_table_gives_zeros_and_has_no_gradient(tree, library, mode):
    forward = in_mode(mode, tree["embedding"], library.embedding)
    back = in_mode(mode, tree["embedding_backward"], library.embedding_backward)
    table, grad = numbers((4, 40)), numbers((5, 40), seed=1)
    for far in (4, -1, 2**31 - 1, -(2**31)):
        indices = torch.tensor([3, far, 0, far, 3], device=DEVICE)
        found = forward(table, indices)
        assert torch.equal(found[[0, 2, 4]], table[[3, 0, 3]])
        assert not found[[1, 3]].any()
        gradient = back(grad, indices, 4)
        assert torch.equal(gradient[3], grad[0] + grad[4])
        assert torch.equal(gradient[0], grad[2])
        assert not gradient[1:3].any()


@pytest.mark.parametrize("mode", CALLED)
def test_an_entry_that_is_used_more_often_than_a_block_is_long(tree, library, mode):
    back = in_mode(mode, tree["embedding_backward"], library.embedding_backward)
    grad, indices = numbers((150, 8)), torch.zeros(150, dtype=torch.int64, device=DEVICE)
    sums = grad.double().sum(0)
    assert_close(back(grad, indices, 2), torch.stack([sums, torch.zeros_like(sums)]))


@pytest.mark.parametrize("layout", ["part of rows", "transposed", "one row"])
@pytest.mark.parametrize("mode", CALLED)
def test_tables_of_other_strides(tree, library, mode, layout):
    table, indices = laid_out(layout, (6, 48)), places(6, (5,))
    found = in_mode(mode, tree["embedding"], library.embedding)(table, indices)
    assert torch.equal(found, table[indices])


def test_gradients(tree):
    table, indices = numbers((6, 40)).requires_grad_(), places(6, (2, 5))
    factor = numbers((2, 5, 40), seed=2)
    (found,) = torch.autograd.grad((tree["embedding"](table, indices) * factor).sum(), table)
    (wanted,) = torch.autograd.grad((table[indices] * factor).sum(), table)
    assert_close(found, wanted)


def test_arguments_that_do_not_fit_are_refused(tree):
    table, indices = numbers((6, 40)), places(6, (5,))
    with pytest.raises(TypeError, match=r"indices must be i32 or i64, found torch.int16"):
        tree["embedding"](table, indices.short())
    with pytest.raises(ValueError, match="table must be a matrix, found 1 dimensions"):
        tree["embedding"](table[0], indices)
    with pytest.raises(TypeError, match=r"table must be fp16, bf16 or fp32, found torch.float64"):
        tree["embedding"](table.double(), indices)
    with pytest.raises(ValueError, match=r"grad must have shape \(5, 40\), found \(6, 40\)"):
        tree["embedding_backward"](table, indices, 6)
