"""eager, opcheck, fake, mutation, determinism, strides, vmap, numerics: passing and failing."""

import dataclasses
import enum
import itertools
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import opforge
from support.checking import row


@dataclasses.dataclass(frozen=True)
class State:
    weight: Tensor
    velocity: Tensor


class Kind(enum.Enum):
    HARD = (1, 2)


def x():
    return torch.randn(4, 3)


def add_one(x: Tensor) -> Tensor:
    return x + 1


def test_an_op_that_raises_fails_eager_with_the_first_line(op_name):
    @opforge.op(op_name())
    def picky(x: Tensor) -> Tensor:
        raise ValueError("not this one\nand a page more")

    found = row("eager", picky, x())
    assert (found.status, found.reason) == ("fail", "ValueError: not this one")
    other = row("compile", picky, x())
    assert other.status == "skipped"
    assert other.reason == "the op does not run on these inputs (row eager)"


def test_opcheck_passes_a_sound_op_with_a_record(op_name):
    @opforge.op(op_name(), mutates_args=["state"])
    def step(state: State, kind: Kind | None = None, *, lr: float = 0.1) -> None:
        state.weight.sub_(state.velocity, alpha=lr)

    assert row("opcheck", step, State(x(), x()), Kind.HARD, lr=0.5).status == "pass"


def test_opcheck_fails_by_the_name_of_torchs_test(op_name):
    op = opforge.op(op_name(), fake=lambda x: x.new_empty(2))(add_one)
    found = row("opcheck", op, x())
    assert found.status == "fail"
    assert found.reason.startswith("test_faketensor: ")
    assert "give fake=" in found.fix
    assert len(found.reason) < 400


def test_fake_passes_and_says_where_the_fake_comes_from(op_name):
    found = row("fake", opforge.op(op_name())(add_one), x())
    assert (found.status, found.reason) == ("pass", "from: body")


def test_fake_fails_by_what_differs(op_name):
    fakes = {
        "shape (4, 2), the op gives (4, 3)": lambda x: x.new_empty(4, 2),
        "dtype torch.float64, the op gives torch.float32": lambda x: x.double(),
        "strides (1, 4), the op gives (3, 1)": lambda x: x.new_empty(3, 4).t(),
        "device meta, the op gives cpu": lambda x: torch.empty_like(x, device="meta"),
    }
    for text, fake in fakes.items():
        found = row("fake", opforge.op(op_name(), fake=fake)(add_one), x())
        assert found.status == "fail"
        assert found.reason == f"output: the fake says {text}"
        assert found.fix == "correct fake=: it must return what the body returns"


def test_a_fake_that_fits_one_size_only_fails(op_name):
    @opforge.op(op_name(), fake=lambda x: x.new_empty(8, 3))
    def double(x: Tensor) -> Tensor:
        return x * 2

    found = row("fake", double, torch.randn(8, 3))
    assert found.status == "fail"
    assert found.reason == (
        "output: the fake says shape (8, 3), the op gives (17, 3), for batch 17"
    )


def test_fake_takes_sizes_that_depend_on_data(op_name):
    def positive(x):
        size = torch.library.get_ctx().new_dynamic_size()
        return x.new_empty(size)

    @opforge.op(op_name(), fake=positive)
    def select(x: Tensor) -> Tensor:
        return x[x > 0].clone()

    assert row("fake", select, x()).status == "pass"


def test_mutation_passes_what_is_declared_and_names_it(op_name):
    @opforge.op(op_name(), mutates_args=["state.weight"])
    def step(state: State, grad: Tensor) -> None:
        state.weight.add_(grad)

    found = row("mutation", step, State(x(), x()), x())
    assert (found.status, found.reason) == ("pass", "writes to state.weight, as declared")


def test_mutation_fails_an_undeclared_write_by_parameter(op_name):
    @opforge.op(op_name(), mutates_args=["state.weight"])
    def step(state: State, items: list[Tensor]) -> None:
        state.weight.add_(1)
        items[1].add_(1)

    found = row("mutation", step, State(x(), x()), [x(), x()])
    assert found.status == "fail"
    assert found.reason == "the op writes to 'items[1]', which mutates_args does not name"
    assert found.fix == "mutates_args=('items',), or write to a copy"


def test_mutation_notes_what_is_declared_and_not_written(op_name):
    op = opforge.op(op_name(), mutates_args=["x"])(add_one)
    found = row("mutation", op, x())
    assert found.status == "pass"
    assert found.notes == ("mutates_args names 'x', which this call did not change",)


def test_determinism_passes_even_if_random_numbers_are_drawn(op_name):
    @opforge.op(op_name())
    def noisy(x: Tensor) -> Tensor:
        return x + torch.rand_like(x)

    assert row("determinism", noisy, x()).status == "pass"
    assert row("compile", noisy, x()).status == "pass"


def test_determinism_fails_where_two_runs_differ(op_name):
    count = itertools.count()

    @opforge.op(op_name(), fake=torch.empty_like)
    def counting(x: Tensor) -> Tensor:
        return x + next(count)

    found = row("determinism", counting, torch.zeros(2))
    assert found.status == "fail"
    assert found.reason.startswith("two runs on the same inputs differ: output: ")
    assert "atomics" in found.fix


def test_numerics_compares_with_the_reference(op_name):
    op = opforge.op(op_name())(add_one)
    assert row("numerics", op, x(), reference=lambda x: 1 + x).status == "pass"
    found = row("numerics", op, torch.zeros(2), reference=lambda x: x + 2)
    assert found.status == "fail"
    assert "output: " in found.reason
    assert found.fix == "if the difference is rounding, pass tolerance="
    passed = row("numerics", op, torch.zeros(2), reference=lambda x: x + 2, tolerance=0.9)
    assert passed.status == "pass"


def test_numerics_of_an_op_in_place_compares_what_is_written(op_name):
    @opforge.op(op_name(), mutates_args=["x"])
    def increment(x: Tensor) -> None:
        x.add_(1)

    for reference in (lambda x: x.add_(1), lambda x: x + 1):
        assert row("numerics", increment, x(), reference=reference).status == "pass"
    assert row("numerics", increment, x(), reference=lambda x: x.add_(2)).status == "fail"
    found = row("numerics", increment, x(), reference=lambda x: None)
    assert found.reason == "the op writes to an input, and the reference does not"


def test_a_reference_may_compute_in_a_wider_dtype(op_name):
    op = opforge.op(op_name())(add_one)
    found = row("numerics", op, x().bfloat16(), reference=lambda x: x.float() + 1)
    assert found.status == "pass"
    assert found.notes == ("the reference gives torch.float32, the op torch.bfloat16",)


class Sorted(NamedTuple):
    values: Tensor
    indices: Tensor


def test_a_reference_may_return_torchs_own_tuples(op_name):
    def backward(ctx, grad, _):
        return torch.zeros(ctx.shape).scatter(-1, ctx.saved_tensors[0], grad), None

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output.indices)
        ctx.shape = inputs[0].shape

    @opforge.op(op_name(), backward=backward, setup_context=setup_context)
    def top(x: Tensor, k: int) -> Sorted:
        values, indices = torch.sort(x, descending=True)
        return Sorted(values[..., :k].clone(), indices[..., :k].clone())

    for name in ("numerics", "autograd"):
        found = row(name, top, torch.randn(4, 8), 3, reference=torch.topk)
        assert found.status == "pass", found


def without_gaps(x: Tensor, index: Tensor) -> Tensor:
    """Takes the elements as they lie in memory, as a kernel does that is not told strides."""
    memory = x.as_strided((x.numel(),), (1,)).view(x.shape)
    return memory.index_select(0, index) + 1


def test_an_op_that_ignores_strides_fails(op_name):
    op = opforge.op(op_name())(without_gaps)
    found = row("strided inputs", op, torch.randn(4, 3), torch.tensor([0, 3]))
    assert found.status == "fail"
    assert found.reason.startswith("with gaps between the elements of x, ")
    assert ".contiguous()" in found.fix


def test_an_op_that_respects_strides_or_refuses_them_passes(op_name):
    @opforge.op(op_name())
    def picky(x: Tensor) -> Tensor:
        if not x.is_contiguous():
            raise ValueError("x must be contiguous")
        return x + 1

    found = row("strided inputs", picky, torch.ones(4, 3))
    assert found.status == "pass"
    assert "x must be contiguous" in found.reason
    inputs = torch.ones(4, 3, dtype=torch.int8), torch.ones(4, 3).to(torch.float8_e4m3fn)
    for given in inputs:
        add = opforge.op(op_name())(as_float)
        found = row("strided inputs", add, given)
        assert (found.status, found.reason) == ("pass", "")
    found = row("strided inputs", opforge.op(op_name())(add_one), torch.tensor(1.0))
    assert found.status == "skipped"


def as_float(x: Tensor) -> Tensor:
    return x.float() + 1


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
    assert found.reason.startswith("slice 0 of vmap: output[0]: ")
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
    assert found.status == "pass"
