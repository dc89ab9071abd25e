"""Tensors that have only metadata answer as torch answers for them."""

import pytest
import torch

from opforge._compat.tracing import Traced

ASKED = [
    ("size", ()), ("size", (0,)), ("size", (-1,)), ("size", (None,)),
    ("stride", ()), ("stride", (1,)), ("stride", (-3,)), ("stride", (None,)),
    ("dim", ()), ("numel", ()), ("nelement", ()),
]  # fmt: skip


class Memory:
    """What a trace keeps of a tensor, as far as its strides ask."""

    def told(self, stride):
        return stride


@pytest.fixture(params=[((2, 3, 4), (12, 4, 1)), ((), ()), ((5,), (2,))])
def traced(request):
    sizes, strides = request.param
    return Traced(Memory(), sizes, strides, 0, torch.float16)


@pytest.mark.parametrize(("name", "args"), ASKED)
def test_a_traced_tensor_answers_what_torch_would(traced, name, args):
    def answer(ask):
        try:
            found = ask()
        except IndexError as error:
            return str(error)
        return type(found), found

    torchs = getattr(torch.Tensor, name)
    assert answer(lambda: getattr(traced, name)(*args)) == answer(lambda: torchs(traced, *args))


@pytest.mark.parametrize("name", ["shape", "dtype", "ndim"])
def test_a_traced_tensor_has_the_attributes_that_torch_would_give_it(traced, name):
    torchs = getattr(torch.Tensor, name).__get__(traced)
    found = getattr(traced, name)
    assert (type(found), found) == (type(torchs), torchs)


@pytest.mark.parametrize("name", ["size", "stride"])
def test_a_dimension_that_is_not_there_raises_as_in_torch(name):
    traced = Traced(Memory(), (2, 3), (3, 1), 0, torch.float16)
    assert getattr(traced, name)(dim=1) == getattr(torch.Tensor, name)(traced, 1)
    with pytest.raises(IndexError, match=r"range of \[-2, 1\], but got 2"):
        getattr(traced, name)(2)
    # torch 2.12 takes it for the name of a dimension.
    with pytest.raises((TypeError, RuntimeError)) as torchs:
        getattr(torch.ones(2, 3), name)("first")
    with pytest.raises(torchs.type):
        getattr(traced, name)("first")
