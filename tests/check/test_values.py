"""Tensors of a call by path, the same call with others, and how two results differ."""

import dataclasses
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opforge.check.values import OpCall, difference, resized, same_bits


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


nan, inf = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("dtype", "near", "far"),
    [
        (torch.float64, 1e-8, 1e-6),
        (torch.float32, 1e-6, 1e-3),
        (torch.float16, 1e-3, 1e-1),
        (torch.bfloat16, 1e-2, 1e-1),
    ],
)
def test_closeness_depends_on_the_dtype(dtype, near, far):
    expected = torch.ones(4, dtype=dtype)
    assert difference(expected * (1 + near), expected, "out") == ""
    assert "off by" in difference(expected * (1 + far), expected, "out")


def test_the_worst_element_is_shown_with_its_index():
    found, expected = torch.zeros(2, 3), torch.zeros(2, 3)
    found[1, 2] = 0.5
    text = difference(found, expected, "out")
    assert text == "out: off by 0.5 (allowed: 1e-05 relative, 0): 0.5 at [1, 2], expected 0.0"


@pytest.mark.parametrize(
    ("found", "expected", "text"),
    [
        (torch.ones(2), torch.ones(3), "out: shape (2,), expected (3,)"),
        (torch.ones(2), torch.ones(2).half(), "dtype torch.float32, expected torch.float16"),
        (torch.ones(2), None, "out: a tensor, expected None"),
        ((1, 2), (1, 3), "out[1]: 2, expected 3"),
        ([1], [1, 2], "out: 1 value, expected 2 values"),
        ({"a": 1}, (1,), "out: ['a'], expected [0]"),
        ([[1], 2], [1, [2]], "out: [0][0], [1], expected [0], [1][0]"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "1 of 2 differ: 2 at [1], expected 3"),
        (torch.tensor([nan]), torch.tensor([1.0]), "off by inf"),
        (torch.tensor([inf]), torch.tensor([-inf]), "off by inf"),
    ],
)
def test_differences_are_reported(found, expected, text):
    assert text in difference(found, expected, "out")


class Top(NamedTuple):
    values: torch.Tensor
    indices: torch.Tensor


def test_a_named_tuple_is_compared_with_a_tuple_by_position():
    x = torch.tensor([3.0, 1.0, 2.0])
    top = torch.topk(x, 2)
    assert difference(Top(*top), top, "out") == ""
    assert difference(Top(*top), (x[:2], top[1]), "out").startswith("out.values: off by 1")


@pytest.mark.parametrize("value", [nan, inf, -inf, 0.0])
def test_special_values_equal_themselves(value):
    assert difference(torch.tensor([value, 1.0]), torch.tensor([value, 1.0 + 1e-7]), "out") == ""


def test_a_given_tolerance_replaces_the_dtypes():
    assert difference(torch.tensor(1.1), torch.tensor(1.0), "out", 0.2) == ""
    assert difference(torch.tensor(1.1), torch.tensor(1.0), "out", (0.0, 0.05)) != ""


def test_bit_patterns_distinguish_zeros_but_not_nans():
    assert same_bits(torch.tensor(nan), torch.tensor(nan))
    assert not same_bits(torch.tensor(0.0), torch.tensor(-0.0))
    assert not same_bits(torch.ones(1), torch.ones(2))
    assert same_bits(torch.ones(2, dtype=torch.complex64), torch.ones(2, dtype=torch.complex64))
