"""Views of symbolic tensors are torch's, for any chain of them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from opforge.native.ir.expr import Var
from opforge.native.symbolic.symint import NotConstant, Symbols, is_symbolic, term_of
from opforge.native.tracing.launches import first_config
from opforge.native.tracing.recorder import Recorder

UNIT = 1


def traced(shape, strides=None):
    """A recorder and a tensor of symbolic sizes, and of symbolic strides if given."""
    names = [f"n{i}" for i in range(len(shape))]
    values = dict(zip(names, shape, strict=True))
    if strides is not None:
        values |= {f"s{i}": s for i, s in enumerate(strides)}
    # Few enough to be unbound into single ones.
    symbols = Symbols(values, dict.fromkeys(values, (0, 60)))
    recorder = Recorder(symbols, lambda _: None, first_config)
    sizes = [symbols.integer(Var(n)) for n in names]
    if strides is None:
        steps = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    else:
        steps = [symbols.integer(Var(f"s{i}")) for i in range(len(shape))]
    return recorder, recorder.parameter("x", torch.float32, sizes, steps)


def number(recorder, value):
    return recorder.symbols.value(term_of(value)) if is_symbolic(value) else value


def layout(recorder, tensor):
    sizes = [number(recorder, s) for s in tensor.shape]
    strides = [number(recorder, s) for s in tensor.stride()]
    return sizes, telling(sizes, strides), number(recorder, tensor.storage_offset())


def plain(tensor):
    return list(tensor.shape), telling(tensor.shape, tensor.stride()), tensor.storage_offset()


def telling(sizes, strides):
    """The stride of a dimension of size 1 means nothing, nor does any in an empty tensor."""
    return [s for n, s in zip(sizes, strides, strict=True) if n > UNIT and 0 not in sizes]


VIEWS = [
    lambda x: x.view(-1),
    lambda x: x.reshape(-1, x.shape[-1]),
    lambda x: x.flatten(0, 1),
    lambda x: x.t() if x.dim() == 2 else x.transpose(0, -1),
    lambda x: x.permute(*reversed(range(x.dim()))),
    lambda x: x[1:],
    lambda x: x[:, :2],
    lambda x: x[..., ::2],
    lambda x: x[-1],
    lambda x: x[:, 0],
    lambda x: x[None],
    lambda x: x.unsqueeze(-1),
    lambda x: x.squeeze(),
    lambda x: x.squeeze(0),
    lambda x: x.expand(3, *x.shape),
    lambda x: x.chunk(2, -1)[0],
    lambda x: x.split([1, x.shape[-1] - 1], -1)[1],
    lambda x: x.narrow(0, 0, 1),
    lambda x: x.unbind(-1)[0],
    lambda x: x.diagonal() if x.dim() >= 2 else x,
    lambda x: x.as_strided((2, 2), (1, 1)),
    lambda x: x.detach(),
    lambda x: x.contiguous(),
    lambda x: x.view(*x.shape, 1),
    lambda x: x.swapaxes(0, 1),
    lambda x: x.movedim(0, -1),
    lambda x: x.mT if x.dim() >= 2 else x,
    lambda x: x.view_as(x),
]


@settings(max_examples=300, deadline=None)
@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    chain=st.lists(st.sampled_from(range(len(VIEWS))), min_size=1, max_size=4),
    strided=st.booleans(),
)
def test_a_chain_of_views_is_torchs(shape, chain, strided):
    real = torch.empty(shape)
    if strided:
        real = torch.empty([2 * s for s in shape])[tuple(slice(0, s) for s in shape)]
    recorder, symbolic = traced(shape, list(real.stride()) if strided else None)
    for index in chain:
        expected = error_or(VIEWS[index], real)
        with recorder.running():
            try:
                found = error_or(VIEWS[index], symbolic)
            except NotConstant:
                return
        if isinstance(expected, Exception):
            assert isinstance(found, Exception), (index, expected, found)
            return
        if "beyond the tensor's memory" in str(found):
            # Only the memory that a given tensor's sizes and strides reach is known.
            assert strided
            return
        assert not isinstance(found, Exception), (index, expected.shape, found)
        copied = expected.untyped_storage().data_ptr() != real.untyped_storage().data_ptr()
        # Where torch cannot rule out a copy for all sizes, it is assumed to copy.
        assert recorder.steps or not copied
        if recorder.steps:
            return
        real, symbolic = expected, found
        if real.numel() == 0:
            # Where nothing is stored, nobody can tell at which offset.
            assert layout(recorder, symbolic)[0] == plain(real)[0], index
            return
        assert layout(recorder, symbolic) == plain(real), index


def error_or(view, tensor):
    try:
        return view(tensor)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        return error


def test_a_compact_tensor_of_any_size_is_contiguous_without_asking():
    recorder, x = traced((4, 5))
    with recorder.running():
        assert x.is_contiguous()
        assert x.contiguous() is x
        x.view(-1)
        torch.empty_like(x)
        torch.zeros(x.shape, device="cuda")
    assert recorder.symbols.guards == []
    assert recorder.offences == []


def test_a_size_left_to_torch_needs_the_others_not_to_be_0():
    recorder, x = traced((4, 5))
    with recorder.running():
        assert str(x.reshape(-1, x.shape[1]).shape[0]) == "n0"
    assert [str(g.condition) for g in recorder.symbols.guards] == ["1 <= n1"]


def test_strides_that_are_symbolic_are_asked_about_once():
    recorder, x = traced((4, 5), (5, 1))
    with recorder.running():
        assert x.is_contiguous()
        assert x.is_contiguous()
    assert len(recorder.symbols.guards) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.empty(x.shape, device=x.device, dtype=x.dtype),
        torch.empty_like,
        lambda x: x.new_empty(x.shape),
        lambda x: torch.zeros_like(x, dtype=torch.int32),
        lambda x: x.new_zeros(x.shape[0], 3),
        lambda x: torch.full((x.shape[0],), float("-inf"), device="cuda"),
        lambda x: x.new_full((2,), 7),
        lambda x: torch.ones(3, device="cuda", dtype=torch.bool),
        lambda x: torch.full_like(x, 2.5),
        lambda x: torch.empty_strided((2, 3), (1, 2), device="cuda"),
    ],
)
def test_allocations_have_torchs_layout(make):
    recorder, x = traced((4, 5))
    with recorder.running():
        found = make(x)
    with FakeTensorMode():
        expected = make(torch.empty(4, 5, device="cuda"))
    assert recorder.offences == []
    assert found.device == torch.device("cuda", 0)
    assert found.dtype == expected.dtype
    assert layout(recorder, found) == plain(expected)
