"""vmap: the user's rule over original arguments, one call per slice, and torch's own fallback."""

import dataclasses
import enum
from typing import NamedTuple

import pytest
import torch
from torch.func import grad, vmap

import opforge
from support.gradients import Pair

Tensor = torch.Tensor

# Without a rule torch loops in C++ and says so; whether it warns is torch's business.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


class Mode(enum.Enum):
    ADD = "add"
    MULTIPLY = "multiply"


@dataclasses.dataclass(frozen=True)
class Weights:
    weight: Tensor
    scale: float = 1.0


class Sum(NamedTuple):
    total: Tensor
    squares: Tensor


def rows(*shape):
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def test_a_rule_sees_the_batch_size_and_where_the_batch_is(op_name):
    seen = []

    def rule(info, in_dims, x, y, scale):
        seen.append((info.batch_size, in_dims, scale))
        x = x.movedim(in_dims[0], 0)
        return op(x, y, scale), 0

    @opforge.op(op_name(), vmap=rule)
    def op(x: Tensor, y: Tensor, scale: float) -> Tensor:
        return x * scale + y

    x, y = rows(2, 3), torch.ones(2)
    out = vmap(lambda x: op(x, y, 2.0), in_dims=1)(x)
    torch.testing.assert_close(out, (x * 2 + y[:, None]).t())
    assert seen == [(3, (1, None, None), 2.0)]


def test_a_rule_sees_original_records_tuples_and_members(op_name):
    seen = []

    def rule(info, in_dims, x, cfg, pair, *, mode):
        seen.append((type(cfg), cfg.scale, type(pair), mode))
        seen.append(
            (in_dims[0], in_dims[1].weight, in_dims[1].scale, tuple(in_dims[2]), in_dims[3])
        )
        return x * cfg.weight * cfg.scale + pair.left, 0

    @opforge.op(op_name(), vmap=rule)
    def op(x: Tensor, cfg: Weights, pair: Pair, *, mode: Mode = Mode.ADD) -> Tensor:
        return x * cfg.weight * cfg.scale + pair.left

    x, weight, other = rows(4, 2), rows(4, 2), torch.ones(2)
    call = lambda x, w: op(x, Weights(w, 3.0), Pair(other, other), mode=Mode.MULTIPLY)  # noqa: E731
    torch.testing.assert_close(vmap(call)(x, weight), x * weight * 3 + 1)
    assert seen == [(Weights, 3.0, Pair, Mode.MULTIPLY), (0, 0, None, (None, None), None)]


@pytest.mark.parametrize("dims", [0, (0, 1)], ids=["one for all", "one each"])
def test_output_dimensions_may_be_one_or_differ(op_name, dims):
    def rule(info, in_dims, x):
        return (x + 1, (x if dims == 0 else x.t()) + 2), dims

    @opforge.op(op_name(), vmap=rule)
    def op(x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, x + 2

    x = rows(3, 2)
    torch.testing.assert_close(vmap(op)(x), (x + 1, x + 2))


def test_a_rule_may_say_that_an_output_has_no_batch(op_name):
    def rule(info, in_dims, x, y):
        return y + 1, None

    @opforge.op(op_name(), vmap=rule)
    def op(x: Tensor, y: Tensor) -> Tensor:
        return y + 1

    out = vmap(op, in_dims=(0, None))(rows(3, 2), torch.zeros(2))
    assert out.tolist() == [[1.0, 1.0]] * 3


@pytest.mark.parametrize("options", [{"vmap": "sequential"}, {}], ids=["sequential", "no rule"])
class TestOneCallPerSlice:
    def test_gives_what_a_loop_gives(self, op_name, options):
        @opforge.op(op_name(), **options)
        def op(x: Tensor, y: Tensor, scale: float = 2.0) -> Tensor:
            return x * scale + y

        x, y = rows(4, 2), rows(2, 4)
        out = vmap(op, in_dims=(0, 1))(x, y)
        torch.testing.assert_close(out, x * 2 + y.t())

    def test_takes_records_and_members(self, op_name, options):
        @opforge.op(op_name(), **options)
        def op(x: Tensor, cfg: Weights, mode: Mode) -> Tensor:
            assert mode is Mode.MULTIPLY
            return x * cfg.weight * cfg.scale

        x, weight = rows(4, 2), rows(4, 2)
        out = vmap(lambda x, w: op(x, Weights(w, 2.0), Mode.MULTIPLY))(x, weight)
        torch.testing.assert_close(out, x * weight * 2)

    def test_takes_an_absent_optional_and_returns_a_record(self, op_name, options):
        @opforge.op(op_name(), **options)
        def op(x: Tensor, y: Tensor | None = None) -> Sum:
            return Sum(x.sum() if y is None else y, (x * x).sum())

        x = rows(4, 2)
        out = vmap(op)(x)
        assert type(out) is Sum
        torch.testing.assert_close(tuple(out), (x.sum(1), (x * x).sum(1)))


def test_sequential_calls_the_body_once_per_slice(op_name):
    seen = []

    @opforge.op(op_name(), vmap="sequential")
    def op(x: Tensor) -> Tensor:
        seen.append(x.tolist())
        return torch.from_numpy(x.numpy() + 1)

    assert vmap(op)(rows(3, 1)).tolist() == [[1.0], [2.0], [3.0]]
    assert seen == [[0.0], [1.0], [2.0]]


def test_sequential_takes_lists(op_name):
    @opforge.op(op_name(), vmap="sequential")
    def op(items: list[Tensor], sizes: list[int]) -> Tensor:
        return items[0] + items[1] * sizes[0]

    x, y = rows(4, 2), rows(2)
    out = vmap(lambda x, y: op([x, y], [3, 4]), in_dims=(0, None))(x, y)
    torch.testing.assert_close(out, x + y * 3)


def test_sequential_returns_lists(op_name):
    @opforge.op(op_name(), vmap="sequential")
    def op(x: Tensor, n: int) -> list[Tensor]:
        return [x + i for i in range(n)]

    @opforge.op(op_name(), vmap="sequential")
    def beside(x: Tensor) -> tuple[Tensor, list[Tensor]]:
        return x + 1, [x + 2, x + 3]

    x = rows(4, 2)
    assert isinstance(vmap(lambda x: op(x, 3))(x), list)
    torch.testing.assert_close(vmap(lambda x: op(x, 3))(x), [x, x + 1, x + 2])
    first, rest = vmap(beside)(x)
    torch.testing.assert_close([first, *rest], [x + 1, x + 2, x + 3])


def test_sequential_mutates_each_slice(op_name):
    @opforge.op(op_name(), vmap="sequential", mutates_args=["x"])
    def op(x: Tensor) -> None:
        x.add_(1)

    x = rows(3, 2)
    vmap(lambda x: (op(x), x)[1])(x)
    torch.testing.assert_close(x, rows(3, 2) + 1)


def test_vmap_of_grad_and_grad_of_vmap_use_the_rule(op_name):
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    def rule(info, in_dims, x):
        seen.append(info.batch_size)
        return square(x), in_dims[0]

    seen = []

    @opforge.op(
        op_name(),
        backward=lambda ctx, g: g * 2 * ctx.saved_tensors[0],
        setup_context=setup_context,
        vmap=rule,
    )
    def square(x: Tensor) -> Tensor:
        return x * x

    x = rows(3)
    torch.testing.assert_close(vmap(grad(square))(x), 2 * x)
    torch.testing.assert_close(grad(lambda x: vmap(square)(x).sum())(x), 2 * x)
    assert seen == [3, 3]


def test_a_rule_runs_under_compile(op_name):
    def rule(info, in_dims, x):
        return op(x), in_dims[0]

    @opforge.op(op_name(), vmap=rule)
    def op(x: Tensor) -> Tensor:
        return x + 1

    compiled = torch.compile(lambda x: vmap(op)(x) * 2, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(rows(3, 2)), (rows(3, 2) + 1) * 2)


def test_explain_says_which_rule_there_is(op_name):
    def body(x: Tensor) -> Tensor:
        return x + 1

    rules = {"sequential": "sequential", "given": lambda info, in_dims, x: (x, 0), "none": None}
    for word, rule in rules.items():
        op = opforge.op(op_name(), vmap=rule)(body)
        line = next(t for t in opforge.explain(op).splitlines() if t.split()[:1] == ["vmap"])
        assert word in line


class Ends(NamedTuple):
    low: Tensor
    high: Tensor


@dataclasses.dataclass(frozen=True)
class Nested:
    ends: Ends
    mean: Tensor


def test_one_dimension_for_a_nested_record_counts_for_all_its_tensors(op_name):
    def rule(info, in_dims, x):
        low, high = x.amin(1), x.amax(1)
        return Nested(Ends(low, high), x.mean(1)), 0

    @opforge.op(op_name(), vmap=rule)
    def spread(x: Tensor) -> Nested:
        return Nested(Ends(x.amin(), x.amax()), x.mean())

    x = rows(3, 2)
    got = vmap(lambda t: (*spread(t).ends, spread(t).mean))(x)
    torch.testing.assert_close(got, (x.amin(1), x.amax(1), x.mean(1)))
