"""What an op may return, that the caller gets it back, and the errors of wrong returns."""

# The old spellings are tested, too.
# ruff: noqa: UP045

from dataclasses import dataclass
from typing import NamedTuple, Optional

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import opforge
from opforge.errors import WrongResult, WrongReturn
from support.sameness import same

X = torch.arange(4.0)


class Pair(NamedTuple):
    value: Tensor
    index: Tensor


class Deep(NamedTuple):
    pair: Pair
    rest: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Stats:
    mean: Tensor
    count: int
    pair: Pair


@dataclass(frozen=True)
class Outer:
    stats: Stats
    extra: Tensor


@dataclass(frozen=True)
class Normalised:
    total: Tensor
    scaled: bool = False

    def __post_init__(self):
        made.append(self)


made: list[Normalised] = []


@pytest.fixture
def returning(op_name):
    """A callable that makes an op with a return annotation from a body."""

    def make(annotation, body, **options):
        def f(x):
            return body(x)

        f.__annotations__ = {"x": Tensor, "return": annotation}
        return opforge.op(op_name(), **options)(f)

    return make


@pytest.fixture
def compiled():
    torch.compiler.reset()
    return lambda fn: torch.compile(fn, fullgraph=True, dynamic=True, backend="aot_eager")


def stats(x):
    return Stats(x.mean(), 7, Pair(x + 1, x + 2))


RETURNS = [
    pytest.param(Tensor, lambda x: x * 2, "direct", "Tensor", id="Tensor"),
    pytest.param(Optional[Tensor], lambda x: x * 2, "direct", "Tensor?", id="Optional, there"),
    pytest.param(Optional[Tensor], lambda x: None, "direct", "Tensor?", id="Optional, absent"),
    pytest.param(list[Tensor], lambda x: [x + 1, x + 2], "direct", "Tensor[]", id="list"),
    pytest.param(list[Tensor], lambda x: [], "direct", "Tensor[]", id="empty list"),
    pytest.param(
        tuple[Tensor, Tensor], lambda x: (x + 1, x + 2), "direct", "(Tensor, Tensor)", id="tuple"
    ),
    pytest.param(tuple[Tensor], lambda x: (x + 1,), "flattened", "Tensor", id="tuple of one"),
    pytest.param(
        tuple[Tensor, ...],
        lambda x: (x + 1, x + 2),
        "flattened",
        "Tensor[]",
        id="tuple of any length",
    ),
    pytest.param(
        tuple[Tensor, list[Tensor]],
        lambda x: (x + 1, [x + 2, x + 3]),
        "direct",
        "(Tensor, Tensor[])",
        id="tuple with a list",
    ),
    pytest.param(
        tuple[Tensor, tuple[Tensor, ...]],
        lambda x: (x + 1, (x + 2, x + 3)),
        "flattened",
        "(Tensor, Tensor[])",
        id="tuple with a tuple of any length",
    ),
    pytest.param(
        tuple[Optional[Tensor], Tensor],
        lambda x: (None, x + 1),
        "direct",
        "(Tensor?, Tensor)",
        id="tuple with an absent tensor",
    ),
    pytest.param(
        tuple[Tensor, tuple[Tensor, Tensor]],
        lambda x: (x + 1, (x + 2, x + 3)),
        "flattened",
        "(Tensor, Tensor, Tensor)",
        id="nested tuple",
    ),
    pytest.param(
        Pair, lambda x: Pair(x + 1, x + 2), "flattened", "(Tensor, Tensor)", id="NamedTuple"
    ),
    pytest.param(
        Deep,
        lambda x: Deep(Pair(x + 1, x + 2), (x + 3, x + 4)),
        "flattened",
        "(Tensor, Tensor, Tensor, Tensor)",
        id="nested NamedTuple",
    ),
    pytest.param(Stats, stats, "flattened", "(Tensor, SymInt, Tensor, Tensor)", id="dataclass"),
    pytest.param(
        Outer,
        lambda x: Outer(stats(x), x + 3),
        "flattened",
        "(Tensor, SymInt, Tensor, Tensor, Tensor)",
        id="nested dataclass",
    ),
    pytest.param(
        tuple[Tensor, int, float, bool],
        lambda x: (x + 1, 3, 0.5, True),
        "direct",
        "(Tensor, SymInt, float, bool)",
        id="tensor and scalars",
    ),
]


@pytest.mark.parametrize(("annotation", "body", "path", "schema"), RETURNS)
def test_the_caller_gets_what_the_body_returned(  # noqa: PLR0917
    annotation, body, path, schema, returning, compiled
):
    op = returning(annotation, body)
    info = opforge.info(op)
    assert (info.path, info.schema.partition(" -> ")[2]) == (path, schema)
    assert same(op(X), body(X)), op(X)
    got, more = compiled(lambda x: (op(x), x + 1))(X)
    assert same(got, body(X))
    assert torch.equal(more, X + 1)
    followed = op(X.clone().requires_grad_())
    assert same(tree_map_only(Tensor, Tensor.detach, followed), body(X))


@pytest.mark.parametrize(
    ("annotation", "value", "schema"),
    [
        (int, 3, "SymInt"),
        (float, 0.5, "float"),
        (bool, True, "bool"),
        (torch.types.Number, 2.5, "Scalar"),
    ],
    ids=["int", "float", "bool", "Number"],
)
def test_a_scalar_comes_back_as_it_is(annotation, value, schema, returning):
    op = returning(annotation, lambda x: value)
    assert opforge.info(op).schema.endswith(f"-> {schema}")
    assert same(op(X), value)
    assert same(op(X.clone().requires_grad_()), value)


def test_none_comes_back_as_none(op_name, compiled):
    @opforge.op(op_name(), mutates_args=["x"])
    def f(x: Tensor) -> None:
        x.add_(1)

    assert opforge.info(f).schema.endswith("-> ()")
    x = torch.zeros(2)
    assert f(x) is None
    assert torch.equal(x, torch.ones(2))

    def twice(x):
        y = x.clone()
        f(y)
        f(y)
        return y

    assert torch.equal(compiled(twice)(x), torch.full((2,), 3.0))
    assert torch.equal(x, torch.ones(2))


def test_a_returned_dataclass_is_rebuilt_without_running_init_again(returning):
    made.clear()
    op = returning(Normalised, lambda x: Normalised(x.sum(), True))
    got = op(X)
    assert len(made) == 1
    assert got is not made[0]
    assert same(got, made[0])


def wrong(op, *args):
    """The text of a WrongReturn, which names the op and its location."""
    with pytest.raises(WrongReturn) as caught:
        op(*args)
    info = opforge.info(op)
    text = str(caught.value)
    assert text.startswith(f"{info.name} ({info.location}): the body returned")
    assert "fix:" in text
    assert isinstance(caught.value, TypeError)
    return text


@pytest.mark.filterwarnings("ignore:.*returns nothing and declares no writes")
@pytest.mark.parametrize(
    ("annotation", "value", "text"),
    [
        *((Tensor, wrong, f"{type(wrong).__name__}, but its annotation says Tensor")
          for wrong in (None, 3, [X], (X, X), "t")),
        (None, X, "a value, but its annotation says None"),
        *((tuple[Tensor, Tensor], (X,) * n, f"tuple of {n}, but its annotation says a tuple of 2")
          for n in (0, 1, 3)),
        *((kind, wrong, f"{type(wrong).__name__} ")
          for kind in (list[Tensor], tuple[Tensor, ...]) for wrong in (None, 3, torch.ones(2, 2))),
        (Pair, (X + 1, X + 2), "a tuple, but its annotation says Pair"),
        (Pair, X + 1, "a Tensor, but its annotation says Pair"),
        (Stats, None, "a NoneType, but its annotation says Stats"),
        (Stats, Pair(X + 1, X + 2), "a Pair, but its annotation says Stats"),
        (int, 1.5, "float"),
        (int, "3", "str"),
        (int, None, "NoneType"),
        (int, torch.ones(3), "Tensor"),
        (float, "x", "str"),
        (bool, 3, "int"),
    ],
)  # fmt: skip
def test_something_other_than_the_annotation_says_is_refused(annotation, value, text, returning):
    assert text in wrong(returning(annotation, lambda x: value), X)


Several = tuple[Tensor, int, bool, Tensor | None, float, Tensor]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, None),
        (0, 1),
        (1, True),
        (1, 2.5),
        (1, None),
        (2, 1),
        (3, 1),
        (4, True),
        (4, "a"),
        (5, []),
    ],
)
def test_each_of_several_outputs_is_checked(place, value, op_name):
    wrong = []

    def body(x: Tensor) -> Several:
        outputs = [x + 1, 2, True, None, 0.5, x + 2]
        for index, each in wrong:
            outputs[index] = each
        return tuple(outputs)

    op = opforge.op(body, name=op_name())
    assert op(torch.ones(1))[1:5] == (2, True, None, 0.5)
    wrong.append((3, torch.ones(1)))
    assert op(torch.ones(1))[3].item() == 1.0
    wrong.append((4, 3))
    assert op(torch.ones(1))[4] == 3.0
    wrong.append((place, value))
    with pytest.raises(WrongReturn, match=f"for return.{place}"):
        op(torch.ones(1))


@pytest.mark.parametrize("place", [0, 1])
def test_one_of_several_outputs_that_autograd_recorded_is_detached(place, op_name):
    weight = torch.ones(1, requires_grad=True)

    @opforge.op(op_name())
    def op(x: Tensor) -> tuple[Tensor, Tensor | None]:
        recorded = x * weight
        return (recorded, None) if place == 0 else (x + 1, recorded)

    with pytest.warns(opforge.OpforgeWarning, match="no gradient reaches it"):
        out = op(torch.ones(1))[place]
    assert not out.requires_grad


def test_a_wrong_return_of_an_op_with_a_backward_is_refused_too(returning):
    op = returning(Tensor, lambda x: 3, backward=lambda ctx, grad: grad)
    assert "its annotation says Tensor" in wrong(op, X)
    assert "its annotation says Tensor" in wrong(op, X.clone().requires_grad_())


def aliased(op, *args):
    with pytest.raises(WrongResult) as caught:
        op(*args)
    info = opforge.info(op)
    text = str(caught.value)
    assert text.startswith(f"{info.name} ({info.location})")
    assert "an output shares memory with an input or with another output" in text
    assert "return a copy (x.clone())" in text
    assert "mutates_args" in text
    assert isinstance(caught.value, RuntimeError)
    return text


def twice(x):
    out = x + 1
    return out, out


@pytest.mark.filterwarnings("ignore:The use of `x.T` on tensors of dimension")
@pytest.mark.parametrize(
    ("annotation", "body", "text"),
    [
        (Tensor, lambda x: x, "parameter 'x'"),
        (Tensor, lambda x: x.view(2, 2), "parameter 'x'"),
        (Tensor, lambda x: x[1:], "parameter 'x'"),
        (Tensor, lambda x: x.detach(), "parameter 'x'"),
        (Tensor, lambda x: x.T, "parameter 'x'"),
        (tuple[Tensor, Tensor], twice, "with another output"),
        (list[Tensor], lambda x: list((x + 1).split(2)), "with another output"),
        (Pair, lambda x: Pair(*twice(x)), "with another output"),
    ],
)
def test_an_output_that_shares_memory_is_refused(annotation, body, text, returning):
    op = returning(annotation, body)
    assert text in aliased(op, X)
    aliased(op, X.clone().requires_grad_())


def test_an_input_in_a_record_or_a_list_is_named_by_its_path(op_name):
    def of_a_record(x: Tensor, pair: Pair) -> Tensor:
        return pair.index

    def of_a_list(x: Tensor, xs: list[Tensor]) -> Tensor:
        return xs[1]

    record, listed = (opforge.op(op_name())(fn) for fn in (of_a_record, of_a_list))
    assert "parameter 'pair.index'" in aliased(record, X, Pair(X + 1, X + 2))
    assert "parameter 'xs'" in aliased(listed, X, [X, X + 1])


def test_a_mutated_input_that_is_returned_is_refused(op_name):
    @opforge.op(op_name(), mutates_args=["x"])
    def f(x: Tensor) -> Tensor:
        return x.add_(1)

    aliased(f, X.clone())


def test_an_aliased_output_is_refused_when_traced(returning, compiled):
    op = returning(Tensor, lambda x: x.view(2, 2))
    with pytest.raises(Exception, match="an output shares memory with an input"):
        compiled(lambda x: op(x) + 1)(X)


def test_an_output_may_be_sparse(op_name):
    @opforge.op(op_name())
    def f(x: Tensor) -> Tensor:
        return x.to_sparse()

    assert torch.equal(f(X).to_dense(), X)


def test_outputs_may_share_memory_with_tensors_that_are_not_inputs(op_name):
    kept = torch.ones(2)

    @opforge.op(op_name())
    def f(x: Tensor) -> Tensor:
        return kept

    assert torch.equal(f(X), kept)
