"""Where opforge's warnings point: at a line of the user's, not into generated code or torch."""

import inspect
import operator
from dataclasses import dataclass

import pytest
import torch
from torch._subclasses import FakeTensorMode

import opforge
from opforge.errors import OpforgeWarning
from opforge.magi import magi_register_custom_op
from support import launching
from support.launching import graph_of

Tensor = torch.Tensor
x = torch.ones(4)
captured = torch.ones(4, requires_grad=True)


@dataclass(frozen=True)
class Cfg:
    scale: float = 2.0


def line_here():
    return inspect.currentframe().f_back.f_lineno


def told(call):
    """The lines that the warnings of a call point at, all in this file."""
    with pytest.warns(OpforgeWarning) as caught:
        call()
    found = [w for w in caught if issubclass(w.category, OpforgeWarning)]
    assert {w.filename for w in found} == {__file__}
    return [w.lineno for w in found]


def plain(x: Tensor) -> Tensor:
    return x * captured


def flattened(x: Tensor, cfg: Cfg) -> Tensor:
    return x * captured * cfg.scale


def listed(x: Tensor) -> list[Tensor]:
    return [x * captured]


@pytest.mark.parametrize(
    ("body", "arguments"),
    [(plain, ()), (flattened, (Cfg(),)), (listed, ())],
    ids=["plain", "flattened", "listed"],
)
@pytest.mark.parametrize("backward", [None, lambda ctx, *grads: None], ids=["none", "given"])
def test_an_eager_call_is_warned_where_it_is_made(op_name, body, arguments, backward):
    op = opforge.op(body, name=op_name(), backward=backward)
    lines = []

    def call():
        lines.append(line_here() + 1)
        op(x, *arguments)

    assert told(call) == lines


def test_a_fake_that_a_call_contradicts_is_told_where_it_is_made(op_name):
    @magi_register_custom_op(op_name())
    def op(x: Tensor) -> Tensor:
        return x[:, : int(x.sum())].clone()

    with FakeTensorMode():
        op(torch.empty(2, 2))
    lines = []

    def call():
        lines.append(line_here() + 1)
        op(torch.full((2, 2), 0.25))

    assert told(call) == lines


def test_a_launch_found_while_tracing_is_told_in_the_body(op_name):
    def fetched(x: Tensor, name: str) -> Tensor:
        out = torch.empty_like(x)
        operator.attrgetter(name)(launching)[(1,)](x, out, x.numel(), BLOCK=128)
        return out

    op = opforge.op(fetched, name=op_name())
    [line] = told(lambda: graph_of(op, x, "double"))
    assert line == fetched.__code__.co_firstlineno + 2
