"""Ops that are overloads: `mylib::f.overload`."""

import pytest
import torch

import opforge
from opforge.errors import BadOption, BadRegistration
from opforge.native.plan import refuse_namesakes
from opforge.registry import registry

Tensor = torch.Tensor


def one(x: Tensor) -> Tensor:
    return x + 1


def two(x: Tensor, y: Tensor) -> Tensor:
    return x + y


@pytest.fixture
def overloads(op_name):
    """(packet, op of one tensor, op of two tensors)"""
    name = op_name()
    made = [opforge.op(one, name=f"{name}.one"), opforge.op(two, name=f"{name}.two")]
    namespace, short = name.split("::")
    yield getattr(getattr(torch.ops, namespace), short), *made
    for op in made:
        if opforge.is_op(op):
            opforge.unregister(op)


ONE, TWO = torch.ones(1), torch.full((1,), 2.0)


def test_the_packet_chooses_by_the_arguments(overloads):
    packet, _, _ = overloads
    assert packet(ONE).item() == 2.0
    assert packet(ONE, TWO).item() == 3.0


def test_overloads_compile_and_have_their_own_rules(overloads):
    _, first, second = overloads
    second.register_autograd(lambda ctx, grad: (grad * 7, grad * 8))
    x = ONE.clone().requires_grad_()
    run = torch.compile(lambda x: second(first(x.detach()), x), backend="aot_eager", fullgraph=True)
    run(x).sum().backward()
    assert x.grad.item() == 8.0
    assert "backward  none" in opforge.explain(first)


def test_an_overload_that_goes_leaves_the_others(overloads):
    packet, first, second = overloads
    name = opforge.info(first).name
    assert packet(ONE).item() == 2.0
    opforge.unregister(first)
    with pytest.raises(BadRegistration):
        first(ONE)
    assert packet(ONE, TWO).item() == 3.0
    assert opforge.info(packet.two).overload is second
    assert packet.overloads() == ["two"]
    again = opforge.op(lambda x: x + 10, name=name, schema="(Tensor x) -> Tensor")
    assert packet(ONE).item() == 11.0
    assert packet.one is again
    opforge.unregister(again)


def test_a_body_that_calls_an_overload_is_read(overloads):
    packet, first, _ = overloads

    def body(x):
        return packet.one(x)

    (found,) = opforge.find_kernels(body).nested_ops
    assert found == opforge.info(first).name


def test_an_overload_has_no_place_in_a_native_library(overloads):
    _, first, _ = overloads
    with pytest.raises(BadOption, match=r"\.one has an overload's name"):
        refuse_namesakes([registry.get(first)])
