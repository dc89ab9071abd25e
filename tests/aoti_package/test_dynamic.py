"""`dynamic`: names, ranges, Dim objects and refusals; other sizes and their tensors."""

import pytest
import torch

from opforge.aoti_package.export import export, read_dynamic, read_exportable
from opforge.aoti_package.verify import (
    Symbol,
    eager_calls,
    open_sizes,
    other_sizes,
    resized,
)
from opforge.errors import BadOption, BuildFailed, UnsupportedBody
from support import packaged_ops


class Add(torch.nn.Module):
    def forward(self, x, y):
        return x + y


@pytest.fixture
def exportable():
    return read_exportable(Add(), (torch.ones(4, 3), torch.ones(4, 3)), None)


def test_dimensions_with_the_same_name_share_one_dim_and_its_range(exportable):
    x, y = read_dynamic({"x": {0: "batch"}, "y": {0: ("batch", 2, 64)}}, exportable)
    assert x.dim is y.dim
    assert (x.dim.min, x.dim.max) == (2, 64)


def test_a_torch_dim_is_used_as_it_is(exportable):
    rows = torch.export.Dim("rows", min=3, max=9)
    [found] = read_dynamic({"x": {-2: rows}}, exportable)
    assert (found.dim is rows, found.index, found.label) == (True, 0, "rows")


def test_a_tensor_in_a_record_is_named_by_its_path():
    cfg = packaged_ops.Scale(torch.ones(4))
    exportable = read_exportable(packaged_ops.scale, (torch.ones(4), cfg), None)
    assert exportable.paths == ("x", "cfg.weight", "cfg.eps")
    [found] = read_dynamic({"cfg.weight": {0: "n"}}, exportable)
    assert (found.path, found.label) == ("cfg.weight", "n")
    with pytest.raises(BadOption, match=r"'cfg\.eps', which is not a tensor"):
        read_dynamic({"cfg.eps": {0: "n"}}, exportable)


def test_an_op_made_by_torch_is_named_by_its_schema():
    exportable = read_exportable(packaged_ops.shift, (), {"x": torch.ones(4)})
    assert (exportable.title, exportable.paths) == ("packaged_ops::shift", ("x",))


@pytest.mark.parametrize(
    ("dynamic", "text"),
    [
        ({"z": {0: "n"}}, "the arguments x, y"),
        ({"x": {5: "n"}}, "dimension 5 of 'x'"),
        ({"x": {0: "a b"}}, "does not name a dimension"),
        ({"x": {0: ("n", 1)}}, "does not name a dimension"),
        ({"x": {0: ("n", 1, 8)}, "y": {0: ("n", 1, 9)}}, "n has two ranges"),
    ],
)
def test_mistakes_are_reported(dynamic, text, exportable):
    with pytest.raises(BadOption) as raised:
        read_dynamic(dynamic, exportable)
    assert text in str(raised.value)


@pytest.mark.parametrize(
    "dynamic",
    [{"x": {0: 7}}, {"x": {0: ("n", 8, 9)}}, {"x": {0: "n"}, "y": {1: "n"}}],
)
def test_what_torch_judges_is_refused_by_torch(dynamic, exportable):
    with pytest.raises((UnsupportedBody, BadOption)):
        export(exportable, read_dynamic(dynamic, exportable), strict=None)


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
        ([symbol(most=10)], [{"n": 1}, {"n": 10}]),
        ([symbol(most=8)], [{"n": 1}]),
        ([symbol(least=8, most=8)], []),
        ([symbol(least=8, most=9)], [{"n": 9}]),
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


def test_a_failure_in_eager_is_reported_with_the_size():
    class Picky(torch.nn.Module):
        def forward(self, x):
            if not torch.compiler.is_compiling() and x.shape[0] < 3:
                raise ValueError("too few")
            return x + 1

    program, exportable, symbols = traced(Picky(), (torch.ones(4),), {"x": {0: "n"}})
    with pytest.raises(BuildFailed) as raised:
        eager_calls(program, exportable, symbols, (), {})
    assert "Picky itself fails in eager for n=1" in str(raised.value)
    assert "found: ValueError: too few" in str(raised.value)
    assert "fix: narrow the range in dynamic" in str(raised.value)
