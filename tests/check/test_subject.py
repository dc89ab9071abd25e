"""A call of an op: its tensors by path, and the same call with others."""

import dataclasses
from typing import NamedTuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opforge.check.subject import OpCall, resized


@dataclasses.dataclass(frozen=True)
class Config:
    weight: torch.Tensor
    eps: float = 1e-6


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor | None = None


def a_call():
    x, w, a, b, left = (torch.full((2,), float(i)) for i in range(5))
    args = (x, Config(w), [a, None, b])
    return OpCall(args, {"pair": Pair(left), "n": 3}, ("x", "cfg", "items"))


def test_every_tensor_has_a_path():
    paths = [p for p, _ in a_call().tensors()]
    assert paths == ["x", "cfg.weight", "items[0]", "items[2]", "pair.left"]


def test_a_changed_call_has_the_same_form():
    call = a_call().map(lambda path, t: t + 10)
    assert [float(t[0]) for _, t in call.tensors()] == [10.0, 11.0, 12.0, 13.0, 14.0]
    assert type(call.args[1]) is Config
    assert call.args[1].eps == 1e-6
    assert type(call.kwargs["pair"]) is Pair
    assert call.kwargs["pair"].right is None
    assert call.kwargs["n"] == 3


def test_a_tensor_that_is_given_twice_stays_one():
    x = torch.ones(3)
    one, two = OpCall((x, x), {}, ("a", "b")).cloned().args
    assert one is two
    assert one is not x


def test_only_the_named_tensors_require_grad():
    call = OpCall((torch.ones(2), torch.arange(2)), {}, ("x", "index")).recording(["x"])
    assert [t.requires_grad for t in call.args] == [True, False]


@settings(deadline=None)  # the first call of a torch function is slow
@given(st.integers(0, 5), st.integers(1, 9), st.booleans())
def test_a_resized_tensor_repeats_its_rows_and_keeps_their_order_in_memory(rows, size, turned):
    tensor = torch.arange(rows * 3.0).reshape(3, rows).t() if turned else torch.ones(rows, 3)
    found = resized(tensor, size)
    assert found.shape == (size, 3)
    if rows:
        assert torch.equal(found, tensor[torch.arange(size) % rows])
    if rows > 1 and size > 1:
        assert (found.stride(0) < found.stride(1)) == turned
