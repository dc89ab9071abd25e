"""Outputs that share memory with an input or with each other: refused, in eager and traced."""

import dataclasses

import pytest
import torch

import opforge
from opforge.errors import WrongResult

Tensor = torch.Tensor


@dataclasses.dataclass(frozen=True)
class Inner:
    cache: Tensor
    length: int = 0


@pytest.mark.parametrize(
    "body",
    [
        lambda x: x,
        lambda x: x[:1],
        lambda x: x.view(-1),
        lambda x: x.t(),
        lambda x: x.detach(),
        lambda x: x.reshape(4),
    ],
    ids=["itself", "slice", "view", "transpose", "detach", "reshape"],
)
@pytest.mark.parametrize(
    "options", [{}, {"backward": lambda ctx, g: g}], ids=["plain", "with backward"]
)
def test_an_output_that_aliases_an_input_raises_naming_the_op(op_name, body, options):
    name = op_name()

    @opforge.op(name, **options)
    def op(x: Tensor) -> Tensor:
        return body(x)

    with pytest.raises(WrongResult) as caught:
        op(torch.zeros(2, 2))
    text = str(caught.value)
    assert name in text
    assert "shares memory with an input" in text
    assert "x.clone()" in text
    assert "parameter 'x'" in text


@pytest.mark.parametrize(
    "options", [{}, {"backward": lambda ctx, g: g}], ids=["plain", "with backward"]
)
def test_an_aliasing_output_raises_when_an_input_requires_grad(op_name, options):
    @opforge.op(op_name(), **options)
    def op(x: Tensor) -> Tensor:
        return x[:1]

    with pytest.raises(WrongResult):
        op(torch.zeros(2, requires_grad=True))


def test_the_guilty_parameter_is_named_among_several(op_name):
    @opforge.op(op_name())
    def op(x: Tensor, items: list[Tensor], cfg: Inner) -> tuple[Tensor, Tensor]:
        return x + 1, cfg.cache

    with pytest.raises(WrongResult, match=r"parameter 'cfg\.cache'"):
        op(torch.zeros(2), [torch.zeros(2)], Inner(torch.zeros(2)))


def test_an_output_that_aliases_another_output_raises(op_name):
    @opforge.op(op_name())
    def op(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        return y, y

    with pytest.raises(WrongResult, match="with another output"):
        op(torch.zeros(2))


def test_outputs_of_an_op_without_tensor_inputs_may_not_alias_each_other(op_name):
    @opforge.op(op_name())
    def op(n: int) -> list[Tensor]:
        y = torch.zeros(n)
        return [y, y[:1]]

    with pytest.raises(WrongResult):
        op(2)


def test_an_alias_of_an_element_of_a_list_raises(op_name):
    @opforge.op(op_name())
    def op(items: list[Tensor]) -> Tensor:
        return items[1]

    with pytest.raises(WrongResult, match="parameter 'items'"):
        op([torch.zeros(1), torch.zeros(2)])


def test_an_alias_in_a_returned_list_raises(op_name):
    @opforge.op(op_name())
    def op(x: Tensor) -> list[Tensor]:
        return [x + 1, x]

    with pytest.raises(WrongResult):
        op(torch.zeros(1))


def test_returning_the_mutated_input_raises_and_says_what_to_do(op_name):
    @opforge.op(op_name(), mutates_args=["x"])
    def add_one(x: Tensor) -> Tensor:
        return x.add_(1)

    with pytest.raises(WrongResult, match="name it in mutates_args and do not return it"):
        add_one(torch.zeros(2))


def test_an_alias_raises_while_tracing_with_the_way_out(op_name):
    @opforge.op(op_name())
    def op(x: Tensor) -> Tensor:
        return x[:1]

    with pytest.raises(Exception, match="shares memory with an input") as caught:
        torch.compile(op, backend="aot_eager", fullgraph=True)(torch.zeros(2))
    assert "x.clone()" in str(caught.value)


def test_an_alias_in_a_records_field_raises_while_tracing(op_name):
    @opforge.op(op_name())
    def op(cfg: Inner) -> Tensor:
        return cfg.cache[:1]

    with pytest.raises(Exception, match="shares memory with an input"):
        torch.compile(lambda c: op(Inner(c)), backend="aot_eager", fullgraph=True)(torch.zeros(2))
