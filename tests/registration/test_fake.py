"""Fakes: where they come from, what leads to an assumption, and how it is verified."""

import dataclasses
import pathlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import opforge
from opforge.errors import (
    UnsupportedBody,
    WrongResult,
)

Tensor = torch.Tensor


@dataclasses.dataclass(frozen=True)
class Cfg:
    weight: Tensor
    other: Tensor
    scale: float = 1.0


def on_fakes(op, *args, **kwargs):
    """Call an op on fakes of its arguments."""
    with FakeTensorMode() as mode:

        def fake(value):
            if isinstance(value, Tensor):
                return mode.from_tensor(value)
            if isinstance(value, Cfg):
                return Cfg(fake(value.weight), fake(value.other), value.scale)
            return [fake(v) for v in value] if isinstance(value, list) else value

        return op(*map(fake, args), **{k: fake(v) for k, v in kwargs.items()})


def source(op):
    return opforge.info(op).fake_source


def numpy_body(x):
    return torch.from_numpy(x.numpy() + 1)


def test_the_fake_is_undetermined_until_it_is_needed(op_name):
    @opforge.op(op_name())
    def op(x: Tensor) -> Tensor:
        return x + 1

    assert source(op) == "undetermined"
    op(torch.ones(2))
    assert source(op) == "undetermined"
    assert "undetermined" in opforge.explain(op)


def test_the_body_is_the_fake_where_it_traces(op_name):
    @opforge.op(op_name())
    def op(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
        return x.new_empty(n, dtype=torch.int64), x.t()[:1].clone()

    first, second = on_fakes(op, torch.ones(2, 3), 7)
    assert isinstance(first, FakeTensor)
    assert (first.shape, first.dtype) == ((7,), torch.int64)
    assert second.shape == (1, 2)
    assert source(op) == "body"
    assert "body: the body ran on fake tensors" in opforge.explain(op)


def test_a_given_callable_is_the_fake(op_name):
    seen = []

    def fake(x: Tensor, cfg: Cfg, *, flip: bool = False) -> Tensor:
        seen.append((type(cfg), cfg.scale, flip))
        return cfg.weight.new_empty(5)

    @opforge.op(op_name(), fake=fake)
    def op(x: Tensor, cfg: Cfg, *, flip: bool = False) -> Tensor:
        raise AssertionError("the body must not run on fakes")

    cfg = Cfg(torch.ones(2, dtype=torch.float64), torch.ones(1), 3.0)
    out = on_fakes(op, torch.ones(2), cfg, flip=True)
    assert (out.shape, out.dtype) == ((5,), torch.float64)
    assert seen == [(Cfg, 3.0, True)]
    assert source(op) == "given"


def test_a_given_fake_may_ask_for_an_unbacked_size(op_name):
    def fake(x):
        return x.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)

    @opforge.op(op_name(), fake=fake)
    def positions(x: Tensor) -> Tensor:
        return x.nonzero().flatten()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(lambda x: positions(x) * 2, backend="aot_eager", fullgraph=True)
        assert compiled(torch.tensor([0.0, 1.0, 1.0])).tolist() == [2, 4]


def test_a_listed_parameter_says_what_outputs_look_like(op_name):
    @opforge.op(op_name(), fake=["y", "x"])
    def op(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return numpy_body(y), numpy_body(x)

    x, y = torch.ones(2), torch.ones(3, dtype=torch.float64)
    first, second = on_fakes(op, x, y)
    assert (first.shape, first.dtype) == (y.shape, y.dtype)
    assert second.shape == x.shape
    assert source(op) == "listed"
    assert "listed: outputs look like y, x" in opforge.explain(op)


@pytest.mark.parametrize("listed", ["cfg.other", "cfg__other"])
def test_a_field_may_be_listed_as(op_name, listed):
    @opforge.op(op_name(), fake=[listed])
    def op(x: Tensor, cfg: Cfg) -> Tensor:
        return numpy_body(cfg.other)

    assert on_fakes(op, torch.ones(2), Cfg(torch.ones(3), torch.ones(4))).shape == (4,)


def test_a_listed_fake_is_verified_by_the_first_real_call(op_name):
    name = op_name()

    @opforge.op(name, fake=["x"])
    def op(x: Tensor) -> Tensor:
        return torch.ones(7)

    with pytest.raises(
        WrongResult, match=r"listed to look like x.*shape \(7,\), expected \(2,\)"
    ) as caught:
        op(torch.ones(2))
    assert name in str(caught.value)


@pytest.mark.parametrize("capture", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        lambda x: x * x.sum().item(),
        lambda x: x + 1 if x.sum().item() > 0 else x + 2,
        lambda x: torch.from_numpy(x.numpy() * 2),
        lambda x: torch.from_numpy(x.numpy() * int(x.sum().item())),
        lambda x: x.new_full((2,), x.data_ptr() % 2),
        lambda x: x + 1 if x.sum() > 0 else x + 2,
        lambda x: x.nonzero().flatten().float() * 0 + x,
    ],
    ids=[
        "item",
        "branch on an item",
        "numpy",
        "item, then numpy",
        "data pointer",
        "branch on a value",
        "nonzero",
    ],
)
def test_a_refused_body_compiles_without_a_graph_break(op_name, body, capture):
    @opforge.op(op_name())
    def op(x: Tensor) -> Tensor:
        return body(x)

    assert on_fakes(op, torch.ones(2)).shape == (2,)
    assert source(op) == "assumed"
    with torch._dynamo.config.patch(capture_scalar_outputs=capture):
        compiled = torch.compile(lambda x: op(x) * 2, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(torch.ones(2)), body(torch.ones(2)) * 2)


def test_the_assumption_and_its_reason_are_said_in_explain(op_name):
    @opforge.op(op_name())
    def op(x: Tensor) -> Tensor:
        return numpy_body(x)

    on_fakes(op, torch.ones(2))
    text = opforge.explain(op)
    assert (
        "assumed: output i looks like tensor input i, because FakeTensor refused the body" in text
    )
    assert "numpy" in text
    assert "not yet verified by a real call" in text
    op(torch.ones(2))
    assert "; verified by a real call" in opforge.explain(op)


def test_each_output_is_assumed_to_look_like_its_own_input(op_name):
    @opforge.op(op_name())
    def op(
        x: Tensor, items: list[Tensor], y: Tensor | None, z: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return numpy_body(x), numpy_body(items[0]), numpy_body(z)

    x, item, z = torch.ones(1), torch.ones(2), torch.ones(3)
    outs = on_fakes(op, x, [item], None, z)
    assert [o.shape[0] for o in outs] == [1, 2, 3]
    op(x, [item], None, z)


@pytest.mark.parametrize(
    ("returns", "made", "text"),
    [
        (list[Tensor], lambda x: [x], r"Tensor\[\]"),
        (tuple[Tensor, Tensor], lambda x: (x, x), "2 outputs, but only 1 tensor inputs"),
    ],
)
def test_a_list_and_more_outputs_than_tensors_are_never_assumed(op_name, returns, made, text):
    def body(items):
        return made(numpy_body(items[0]))

    body.__annotations__ = {"items": list[Tensor], "return": returns}
    op = opforge.op(body, name=op_name())
    with pytest.raises(UnsupportedBody, match=text):
        on_fakes(op, [torch.ones(2)])


class Mine(Exception):
    pass


# What FakeTensor refuses with is a RuntimeError or NotImplementedError, too.
@pytest.mark.parametrize(
    "error", [Mine("mine"), RuntimeError("mine"), NotImplementedError("mine")], ids=type
)
def test_the_users_own_exception_propagates(op_name, error):
    @opforge.op(op_name())
    def op(x: Tensor) -> Tensor:
        raise error

    with pytest.raises(type(error), match="mine") as caught:
        on_fakes(op, torch.ones(2))
    assert caught.value is error
    assert source(op) == "undetermined"


def raising_fake(x):
    raise Mine("in the fake")


@pytest.mark.parametrize(
    ("fake", "error"), [(raising_fake, Mine), (numpy_body, RuntimeError)], ids=["raises", "refused"]
)
def test_a_given_fake_that_fails_is_not_replaced_by_an_assumption(op_name, fake, error):
    @opforge.op(op_name(), fake=fake)
    def op(x: Tensor) -> Tensor:
        return x + 1

    with pytest.raises(error, match=r"in the fake|numpy"):
        on_fakes(op, torch.ones(2))
    assert source(op) == "given"


def mismatching(op_name, body, rows=2):
    name = op_name()

    @opforge.op(name)
    def op(x: Tensor) -> Tensor:
        x.numpy()
        return body(x)

    on_fakes(op, torch.ones(rows, 3))
    assert source(op) == "assumed"
    return name, op


@pytest.mark.parametrize(
    ("body", "difference"),
    [
        (lambda x: torch.ones(3, 3), "shape (3, 3), expected (2, 3)"),
        (lambda x: torch.ones(6), "shape (6,), expected (2, 3)"),
        (lambda x: x.double(), "dtype torch.float64, expected torch.float32"),
        (lambda x: torch.empty(2, 3, device="meta"), "device meta, expected cpu"),
        (lambda x: torch.ones(3, 2).t(), "strides (1, 2), expected (3, 1)"),
    ],
    ids=["shape", "rank", "dtype", "device", "strides"],
)
def test_the_first_real_call_finds_a_wrong(op_name, body, difference):
    name, op = mismatching(op_name, body)
    for _ in range(2):
        with pytest.raises(WrongResult) as caught:
            op(torch.ones(2, 3))
    text = str(caught.value)
    assert name in text
    assert pathlib.Path(__file__).name in text
    assert "output 0 differs from the fake" in text
    assert difference in text
    assert "fix: give fake=" in text


def test_a_tensor_where_none_was_assumed_is_found(op_name):
    @opforge.op(op_name())
    def op(x: Tensor) -> Tensor | None:
        x.numpy()
        return None

    on_fakes(op, torch.ones(2))
    with pytest.raises(WrongResult, match="got NoneType, expected Tensor"):
        op(torch.ones(2))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("options", [{}, {"backward": lambda ctx, g: g}])
def test_an_op_that_autograd_follows_verifies_as_well(op_name, grad, options):
    @opforge.op(op_name(), **options)
    def op(x: Tensor) -> Tensor:
        x.detach().numpy()
        return torch.ones(6)

    on_fakes(op, torch.ones(2, 3))
    with pytest.raises(WrongResult):
        op(torch.ones(2, 3, requires_grad=grad))


def test_strides_that_do_not_matter_are_not_compared(op_name):
    _, op = mismatching(op_name, lambda x: torch.ones(1, 3).as_strided((1, 3), (99, 1)), rows=1)
    assert op(torch.ones(1, 3)).shape == (1, 3)


def test_the_body_is_tried_again_for_each_trace_while_it_works(op_name):
    """A body may trace for one input and be refused for another."""

    @opforge.op(op_name())
    def op(x: Tensor, native: bool) -> Tensor:
        return x + 1 if native else numpy_body(x)

    on_fakes(op, torch.ones(2), True)
    assert source(op) == "body"
    on_fakes(op, torch.ones(2), False)
    assert source(op) == "assumed"
    assert on_fakes(op, torch.ones(2), True).shape == (2,)


def test_an_assumption_is_verified_for_every_kind_of_input(op_name):
    """float64 in gives float32 out, and compiled code would read garbage."""

    @opforge.op(op_name())
    def single(x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy().astype("float32") * 2)

    compiled = torch.compile(lambda x: single(x) + 1, backend="aot_eager", fullgraph=True)
    compiled(torch.ones(2))
    with pytest.raises(WrongResult, match=r"dtype torch\.float32, expected torch\.float64"):
        compiled(torch.ones(2, dtype=torch.float64))
    compiled(torch.ones(2))


def test_a_body_may_read_a_tensor_of_its_module_while_tracing(op_name):
    table = torch.arange(3.0)

    @opforge.op(op_name())
    def shifted(x: Tensor) -> Tensor:
        return x + table

    x = torch.ones(2, 3)
    compiled = torch.compile(shifted, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), x + table)
    assert source(shifted) == "body"


def test_a_body_that_keeps_a_tensor_of_a_trace_is_refused_with_a_fake_as_the_fix(op_name):
    name, kept = op_name(), {}

    @opforge.op(name)
    def rope(x: Tensor) -> Tensor:
        return x * kept.setdefault("table", torch.arange(3.0))

    with pytest.raises(UnsupportedBody, match="keeps tensors between calls") as caught:
        torch.compile(rope, backend="aot_eager", fullgraph=True)(torch.ones(2, 3))
    assert name in str(caught.value)
    assert "give fake=" in str(caught.value)
