"""What a library gets of an op's declared backward."""

import re

import pytest
import torch
from torch import Tensor

import opforge
from opforge import native
from opforge.native.ir.places import shortened
from opforge.native.plan import plan

N = native.tensor("n", dtype="fp32")


def exp(x: Tensor) -> Tensor:
    return torch.exp(x)


def save_output(ctx, inputs, output):
    ctx.save_for_backward(output)


def times_output(ctx, grad):
    return grad * ctx.saved_tensors[0]


def sorts(ctx, grad):
    return grad.sort().values


@pytest.fixture
def declared(op_name):
    """An op with a backward, declared; and its name."""

    def make(fn=exp, backward=times_output, name=None):
        name = name or op_name()
        callbacks = {"backward": backward, "setup_context": save_output} if backward else {}
        op = opforge.op(fn, name=name, mode="custom_op", **callbacks)
        native.declare(op, **{p: N for p in fn.__annotations__ if p != "return"})
        return op, name

    return make


def test_a_backward_is_an_operator_of_the_library(declared):
    op, name = declared()
    own = name.partition("::")[2]
    forward, backward = plan([op], (90,)).ops
    assert (forward.name, backward.name) == (own, f"{own}_backward")
    assert [p.name for p in backward.params] == ["grad_out", "out"]
    assert backward.outputs == ("grad_x",)
    assert backward.schema == f"{name}_backward(Tensor grad_out, Tensor out) -> Tensor"
    assert backward.location == f"{__file__}:{times_output.__code__.co_firstlineno}"
    assert backward.source_hash


def test_its_paths_are_heard_of_under_its_name(declared):
    op, name = declared()
    heard = []
    plan([op], (90,), traced=lambda *told: heard.append(told))
    assert heard == [(name, 1), (f"{name}_backward", 1)]


def test_a_note_says_why_a_backward_is_not_built(declared):
    op, name = declared(backward=sorts)
    made = plan([op], (90,))
    assert [each.torch_name for each in made.ops] == [name]
    (note,) = [note for note in made.notes if "_backward" in note]
    own, line = name.partition("::")[2], sorts.__code__.co_firstlineno + 1
    assert note.startswith(
        f"{name}: the library has no {own}_backward, because it cannot be built for grad_out fp32 "
        f"1-d, x fp32 1-d, out fp32 1-d: aten.sort at {__file__}:{line}; a native library can hold "
        "launches and the torch calls that "
    )
    assert not made.requests.keys() - plan([declared(backward=None)[0]], (90,)).requests.keys()
    assert shortened(note) == (
        f"{name}: the library has no {own}_backward, because it cannot be built"
    )


def by_hand(grad: Tensor, out: Tensor) -> Tensor:
    return grad * out * 1


def test_an_operator_of_that_name_is_the_backward(declared):
    op, name = declared()
    other, _ = declared(by_hand, None, f"{name}_backward")
    made = plan([op, other], (90,))
    assert [each.torch_name for each in made.ops] == [name, f"{name}_backward"]
    assert [p.name for p in made.ops[1].params] == ["grad", "out"]
    assert [each.torch_name for each in plan([op], (90,)).ops] == [name]


def test_an_operator_of_that_name_without_a_declaration_is_told(declared):
    op, name = declared()
    opforge.op(by_hand, name=f"{name}_backward", mode="custom_op")
    made = plan([op], (90,))
    assert [each.torch_name for each in made.ops] == [name]
    (note,) = [note for note in made.notes if "native.declare" in note]
    assert re.fullmatch(
        rf"{name}: the library has no \w+_backward, because {name}_backward is an operator without "
        r"native\.declare; declare it",
        note,
    )


def test_the_backward_of_several_implementations_has_the_cases_of_all(declared, op_name):
    op, _ = declared()
    wide = opforge.op(exp, name=op_name(), mode="custom_op")
    native.declare(wide, x=native.tensor("n", dtype=("fp64", "fp32")))
    native.implementations(op, op, wide)
    _, backward = plan([op], (90,)).ops
    assert [case.tensors[0].dtype for case in backward.cases] == ["fp32", "fp64"]
    assert {case.implementation for case in backward.cases} == {0}
