"""`dynamic`: names, ranges, Dim objects and refusals."""

import pytest
import torch

from opforge.aoti_package.dynamic import read_dynamic, shapes_collection
from opforge.aoti_package.exportable import read_exportable
from opforge.errors import BadOption
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
    assert (x.dim.min, x.dim.max, x.least) == (2, 64, 2)


def test_a_torch_dim_is_used_as_it_is(exportable):
    rows = torch.export.Dim("rows", min=3, max=9)
    [found] = read_dynamic({"x": {-2: rows}}, exportable)
    assert (found.dim is rows, found.index, found.label, found.least) == (True, 0, "rows", 3)


def test_a_hint_is_labelled_by_its_argument_and_index(exportable):
    [found] = read_dynamic({"x": {1: torch.export.Dim.AUTO}}, exportable)
    assert (found.label, found.least) == ("x[1]", None)


def test_a_tensor_in_a_record_is_named_by_its_path():
    cfg = packaged_ops.Scale(torch.ones(4))
    exportable = read_exportable(packaged_ops.scale, (torch.ones(4), cfg), None)
    assert exportable.paths == ("x", "cfg.weight", "cfg.eps")
    [found] = read_dynamic({"cfg.weight": {0: "n"}}, exportable)
    assert shapes_collection((found,), exportable)[cfg.weight] == {0: found.dim}


def test_an_op_made_by_torch_is_named_by_its_schema():
    exportable = read_exportable(packaged_ops.shift, (), {"x": torch.ones(4)})
    assert (exportable.title, exportable.paths) == ("packaged_ops::shift", ("x",))


def test_without_dynamic_torch_gets_no_dynamic_shapes(exportable):
    assert shapes_collection(read_dynamic(None, exportable), exportable) is None


@pytest.mark.parametrize(
    ("dynamic", "text"),
    [
        ({"z": {0: "n"}}, "which is not a tensor argument of Add\n  found: the arguments x, y"),
        ({"x": {5: "n"}}, "there is no dimension 5\n  found: a tensor of shape (4, 3)"),
        ({"x": {0: 7}}, "dimension 0 has no name\n  found: 7"),
        ({"x": "batch"}, "dynamic must map each argument to its dimensions"),
        ("batch", "dynamic must map arguments to their dimensions\n  found: 'batch'"),
        ({"x": {0: "n"}, "y": {1: "n"}}, "found: 4 in x, 3 in y\n  fix: use different names"),
        ({"x": {0: "a b"}}, "'a b' cannot name a dimension"),
        ({"x": {0: ("n", 8, 9)}}, "the given size 4 is outside the range of n"),
        ({"x": {0: ("n", 1, 8)}, "y": {0: ("n", 1, 9)}}, "n has two ranges"),
    ],
)
def test_mistakes_are_reported(dynamic, text, exportable):
    with pytest.raises(BadOption) as raised:
        read_dynamic(dynamic, exportable)
    assert text in str(raised.value)


def test_a_number_cannot_be_dynamic():
    exportable = read_exportable(Add(), (torch.ones(4), 2), None)
    with pytest.raises(
        BadOption, match="2, which becomes a constant of the package\n  fix: leave it out"
    ):
        read_dynamic({"y": {0: "n"}}, exportable)


def test_a_size_that_export_would_make_constant_is_refused_with_a_fix():
    exportable = read_exportable(Add(), (torch.ones(1, 3), torch.ones(1, 3)), None)
    with pytest.raises(BadOption, match="trace with a size of 2 or more"):
        read_dynamic({"x": {0: "batch"}}, exportable)
