"""How two results differ, and copies of tensors."""

from typing import NamedTuple

import pytest
import torch

from opforge.comparison import MANY_STEPS, copy_of, difference, largest_error, same_bits

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
    assert "Mismatched elements" in difference(expected * (1 + far), expected, "out")
    wider = difference(expected * (1 + 3 * near), expected, "out", steps=MANY_STEPS)
    assert wider == ""


def test_the_worst_element_is_shown_with_its_index():
    found, expected = torch.zeros(2, 3), torch.zeros(2, 3)
    found[1, 2] = 0.5
    text = difference(found, expected, "out")
    assert "difference: 0.5 at index (1, 2)" in text


@pytest.mark.parametrize(
    ("found", "expected", "text"),
    [
        (torch.ones(2), torch.ones(3), "out: The values for attribute 'shape' do not match"),
        (torch.ones(2), torch.ones(2).half(), "torch.float32 != torch.float16"),
        (torch.ones(2), None, "out: a tensor, expected None"),
        ((1, 2), (1, 3), "out[1]: 2, expected 3"),
        ([1], [1, 2], "out: 1 value, expected 2 values"),
        ({"a": 1}, (1,), "out: ['a'], expected [0]"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "difference: 1 at index (1,)"),
        (torch.tensor([nan]), torch.tensor([1.0]), "difference: nan"),
        (torch.tensor([inf]), torch.tensor([-inf]), "difference: inf"),
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
    assert difference(Top(*top), (x[:2], top[1]), "out").startswith("out.values: ")


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


def test_the_largest_error_passes_by_what_is_not_finite_in_both():
    found = [torch.tensor([1.5, nan, inf]), torch.tensor([3]), torch.empty(0)]
    assert largest_error(found, [torch.tensor([1.0, nan, inf]), *found[1:]]) == 0.5


def test_a_copy_has_the_same_strides_even_where_they_overlap():
    for tensor in (
        torch.randn(3, 1).expand(3, 4),
        torch.randn(4, 6)[:, ::2],
        torch.randn(9).as_strided((4, 3), (2, 1)),
        torch.randn(12)[5:],
        torch.tensor(2.0),
        torch.empty(0, 3),
    ):
        copy = copy_of(tensor)
        assert copy.stride() == tensor.stride()
        assert torch.equal(copy, tensor)
        assert copy.data_ptr() != tensor.data_ptr() or tensor.numel() == 0
