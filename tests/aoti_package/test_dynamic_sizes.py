"""Other sizes: how they are chosen, and the tensors made for them."""

import pytest
import torch

from opforge.aoti_package.dynamic import read_dynamic
from opforge.aoti_package.dynamic_sizes import Symbol, copy_of, open_sizes, other_sizes, resized
from opforge.aoti_package.eager_calls import eager_calls
from opforge.aoti_package.export import export
from opforge.aoti_package.exportable import read_exportable
from opforge.errors import BuildFailed, WrongArgument
from support import packaged_ops


class Lookup(torch.nn.Module):
    def forward(self, x, index):
        return x[index].t() + 1


def traced(model, args, dynamic):
    exportable = read_exportable(model, args, None)
    dims = read_dynamic(dynamic, exportable)
    program = export(exportable, dims, strict=False).program
    return program, exportable, open_sizes(program, exportable, dims)


def symbol(label="n", traced=8, least=1, most=1024):
    return Symbol(None, label, traced, least, most)


@pytest.mark.parametrize(
    ("symbols", "sizes"),
    [
        ([], []),
        ([symbol()], [{"n": 1}, {"n": 17}]),
        ([symbol(most=None)], [{"n": 1}, {"n": 17}]),
        ([symbol(most=10)], [{"n": 1}, {"n": 10}]),
        ([symbol(most=8)], [{"n": 1}, {"n": 7}]),
        ([symbol(least=8)], [{"n": 17}]),
        ([symbol(least=8, most=8)], []),
        ([symbol("a"), symbol("b")], [{"a": 1, "b": 1}, {"a": 17, "b": 19}]),
    ],
)
def test_the_smallest_and_another_size_are_chosen_but_never_the_traced_one(symbols, sizes):
    assert other_sizes(symbols) == sizes


def test_indices_stay_valid_and_strides_stay_as_traced():
    x = torch.randn(6, 10)[:, ::2].t()
    index = torch.tensor([0, 4, 2])
    program, exportable, symbols = traced(Lookup(), (x, index), {"index": {0: "picked"}})
    made, picked = resized(program, exportable, symbols, {"picked": 7})
    assert picked.tolist() == [0, 4, 2, 0, 4, 2, 0]
    assert made.stride() == x.stride()
    assert made.shape == x.shape
    assert set(made.flatten().tolist()) <= set(x.flatten().tolist())


def test_a_derived_size_follows_the_one_it_is_derived_from():
    half = torch.export.Dim("half", min=2, max=32)

    class Halves(torch.nn.Module):
        def forward(self, x, y):
            return x + y[::2]

    dynamic = {"x": {0: half}, "y": {0: 2 * half}}
    program, exportable, symbols = traced(Halves(), (torch.ones(4), torch.ones(8)), dynamic)
    assert [(s.label, s.traced) for s in symbols] == [("half", 4)]
    x, y = resized(program, exportable, symbols, {"half": 5})
    assert (x.shape, y.shape) == ((5,), (10,))


@pytest.mark.parametrize(("least", "seen"), [(0, 0), (None, 1), (2, 2)])
def test_empty_tensors_are_tried_only_if_the_user_asked_for_zero(least, seen):
    class Plus(torch.nn.Module):
        def forward(self, x):
            return x + 1

    dynamic = {"x": {0: ("n", least, 9) if least is not None else "n"}}
    _, _, symbols = traced(Plus(), (torch.ones(4),), dynamic)
    assert symbols[0].least == seen


def test_a_copy_has_the_same_strides_even_where_they_overlap():
    for tensor in (
        torch.randn(3, 1).expand(3, 4),
        torch.randn(4, 6)[:, ::2],
        torch.tensor(2.0),
        torch.empty(0, 3),
    ):
        copy = copy_of(tensor)
        assert copy.stride() == tensor.stride()
        assert torch.equal(copy, tensor)
        assert copy.data_ptr() != tensor.data_ptr() or tensor.numel() == 0


def test_a_failure_in_eager_is_reported_with_the_size():
    class Picky(torch.nn.Module):
        def forward(self, x):
            if not torch.compiler.is_compiling() and x.shape[0] < 3:
                raise ValueError("too few")
            return x + 1

    program, exportable, symbols = traced(Picky(), (torch.ones(4),), {"x": {0: "n"}})
    with pytest.raises(BuildFailed) as raised:
        eager_calls(program, exportable, symbols, ())
    assert "Picky itself fails in eager for n=1" in str(raised.value)
    assert "found: ValueError: too few" in str(raised.value)
    assert "fix: narrow the range in dynamic" in str(raised.value)


def test_further_arguments_must_match_the_given_ones():
    program, exportable, symbols = traced(packaged_ops.Block(), (torch.ones(4, 16),), None)
    with pytest.raises(WrongArgument, match=r"also\[0\] does not have the same arguments"):
        eager_calls(program, exportable, symbols, [(torch.ones(4), torch.ones(4))])
    with pytest.raises(
        WrongArgument, match=r"also\[0\] must be a tuple of the positional arguments"
    ):
        eager_calls(program, exportable, symbols, [torch.ones(4)])
