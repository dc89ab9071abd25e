"""vmap: passing, failing and skipped."""

import pytest
import torch
from torch import Tensor

import opforge
from support.checking import row


def product(x: Tensor, y: Tensor) -> Tensor:
    return x * y


def test_vmap_passes_by_torchs_fallback_and_by_a_rule(op_name):
    found = row("vmap", opforge.op(op_name())(product), torch.randn(2, 3), torch.randn(2, 3))
    assert (found.status, found.reason) == ("pass", "torch's own fallback")
    op = opforge.op(op_name(), vmap="sequential")(product)
    assert row("vmap", op, torch.randn(2, 3), torch.randn(2, 3)).status == "pass"


def test_vmap_fails_where_a_slice_differs(op_name):
    op = opforge.op(op_name(), vmap=lambda info, in_dims, x, y: (x * y + 1, 0))(product)
    found = row("vmap", op, torch.zeros(2), torch.zeros(2))
    assert found.status == "fail"
    assert found.reason.startswith("slice 0 of vmap: output[0]: off by 1")
    assert found.fix == "correct vmap=, or vmap='sequential'"


def behind_is_ignored(info, in_dims, x, y):
    return x * y, 0


def both_are_batched(info, in_dims, x, y):
    return x.movedim(in_dims[0], 0) * y.movedim(in_dims[1], 0), 0


def anywhere(info, in_dims, x, y):
    x, y = (t if d is None else t.movedim(d, 0) for t, d in zip((x, y), in_dims, strict=True))
    return x * y, 0


@pytest.mark.parametrize(
    ("rule", "said"),
    [(behind_is_ignored, "in_dims x: 2, y: 2"), (both_are_batched, "in_dims x: 0, y: None")],
)
def test_a_vmap_rule_must_respect_the_batch_dimension(op_name, rule, said):
    op = opforge.op(op_name(), vmap=rule)(product)
    found = row("vmap", op, torch.randn(3, 4), torch.randn(3, 4))
    assert found.status == "fail"
    assert said in found.reason
    assert found.fix == "correct vmap=, or vmap='sequential'"


@pytest.mark.parametrize("rule", [anywhere, "sequential"])
def test_a_vmap_rule_that_respects_it_passes(op_name, rule):
    op = opforge.op(op_name(), vmap=rule)(product)
    assert row("vmap", op, torch.randn(3, 4), torch.randn(3, 4)).status == "pass"


def test_vmap_is_skipped_where_torch_has_no_fallback_and_nothing_to_batch(op_name):
    @opforge.op(op_name(), mutates_args=["x"])
    def increment(x: Tensor) -> None:
        x.add_(1)

    found = row("vmap", increment, torch.zeros(2))
    assert found.reason == "no vmap rule, and torch has no fallback for lists, numbers or mutation"
    assert found.fix == "give vmap='sequential'"

    @opforge.op(op_name())
    def rows(x: Tensor) -> int:
        return x.shape[0]

    assert row("vmap", rows, torch.zeros(2)).reason == found.reason

    @opforge.op(op_name())
    def allocate(n: int) -> Tensor:
        return torch.zeros(n)

    assert row("vmap", allocate, 3).reason == "no tensor input to batch"


def test_vmap_of_what_is_written_in_place_is_compared(op_name):
    @opforge.op(op_name(), mutates_args=["x"], vmap="sequential")
    def increment(x: Tensor) -> None:
        x.add_(1)

    assert row("vmap", increment, torch.zeros(2)).status == "pass"


def test_a_vmap_rule_is_not_blamed_for_an_op_that_takes_no_gaps(op_name):
    def memory(x: Tensor) -> Tensor:
        return x.as_strided(x.shape, (x.shape[1], 1)) * 2

    found = row("vmap", opforge.op(op_name(), vmap="sequential")(memory), torch.randn(3, 4))
    assert found.status == "fail"
    assert "(row strided inputs)" in found.reason
    assert ".contiguous()" in found.fix

    def picky(x: Tensor) -> Tensor:
        assert x.is_contiguous()
        return x * 2

    found = row("vmap", opforge.op(op_name(), vmap="sequential")(picky), torch.randn(3, 4))
    assert found.status == "pass"
    assert "the op refuses inputs with gaps" in found.notes[0]
