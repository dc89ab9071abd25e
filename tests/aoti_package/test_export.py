"""Exporting one way or both: what is kept, and how a failure names the user's line."""

import linecache

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import opforge
from opforge import _compat
from opforge.aoti_package.export import _Refusal, export, read_dynamic, read_exportable
from opforge.errors import OpforgeWarning, UnsupportedBody
from support import packaged_ops
from support.launching import double


def attempt(model, *args, strict=None, dynamic=None):
    exportable = read_exportable(model, args or (torch.randn(4, 16),), None)
    return export(exportable, read_dynamic(dynamic, exportable), strict=strict)


def refusal(model, *args, **options):
    with pytest.raises(UnsupportedBody) as raised:
        attempt(model, *args, **options)
    file, line, *_ = str(raised.value).split(":")
    return raised.value, str(raised.value), linecache.getline(file, int(line)).strip()


class Numpy(torch.nn.Module):
    def forward(self, x):
        return torch.from_numpy(np.sin(x.numpy()))


class Breaks(torch.nn.Module):
    def forward(self, x):
        torch._dynamo.graph_break()
        return x + 1


class Branches(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x + 1
        return x


class Specializes(torch.nn.Module):
    def forward(self, x):
        return x.reshape(4, 16) + torch.ones(4, 16)


@triton.jit
def bare_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


class Bare(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        bare_kernel[(1,)](x, out, x.numel(), BLOCK=1024)
        return out


def test_non_strict_is_tried_first_and_is_enough():
    exported = attempt(Breaks())
    assert (exported.strict, exported.failures) == (False, ())


def test_strict_is_tried_next_and_the_first_failure_is_kept():
    exported = attempt(Numpy())
    assert exported.strict
    [failure] = exported.failures
    assert failure.startswith(f"non-strict export failed at {__file__}:")
    assert ".numpy() is not supported for tensor subclasses" in failure


def test_when_both_fail_both_reasons_are_reported():
    _, text, line = refusal(Branches())
    assert line == "if x.sum() > 0:"
    assert "non-strict export failed at" in text
    assert " strict export failed at" in text
    assert "Data-dependent branching" in text
    assert "fix: the value is known only at run time: write the branch with torch.where" in text


@pytest.mark.parametrize("strict", [True, None])
def test_a_size_that_the_code_fixes_is_reported_with_its_line(strict):
    _, text, line = refusal(Specializes(), strict=strict, dynamic={"x": {0: "batch"}})
    assert line == "return x.reshape(4, 16) + torch.ones(4, 16)"
    assert "your code specialized it to be a constant (4)" in text
    assert "fix: the code works only for this size" in text


def test_an_error_without_a_line_points_at_forward():
    _, _, line = refusal(Specializes(), strict=False, dynamic={"x": {0: "batch"}})
    assert line == "def forward(self, x):"


def test_a_bare_launch_is_explained_and_its_kernel_is_named():
    """A launch with a fake tensor's pointer, which is 0, would break the GPU's context."""
    _, text, line = refusal(Bare(), strict=False)
    assert _compat.launches.current() is None
    assert line == "bare_kernel[(1,)](x, out, x.numel(), BLOCK=1024)"
    first = bare_kernel.fn.__code__.co_firstlineno
    assert f"launches the Triton kernel bare_kernel ({__file__}:{first}) itself" in text
    assert "move the launch of bare_kernel into a function decorated with @opforge.op" in text


def test_a_failed_analysis_of_what_a_kernel_writes_warns_with_its_name():
    with pytest.warns(OpforgeWarning, match=r"kernel double \(.*launching\.py:\d+\) writes"):
        assert _Refusal().written(double, ["x"], ["x"], ValueError("no")) == ["x"]


class Wrapped(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        torch.library.wrap_triton(bare_kernel)[(1,)](x, out, x.numel(), BLOCK=1024)
        return out


def test_a_launch_that_torch_wraps_is_left_to_torch():
    with opforge.target("sm_90"):
        exported = attempt(Wrapped(), strict=False)
    assert "triton_kernel_wrapper_mutation" in str(exported.program.graph)


@pytest.mark.parametrize("strict", [True, False])
def test_a_bare_op_with_a_record_exports_both_ways(strict):
    args = torch.randn(4, 16), packaged_ops.Scale(torch.randn(16))
    exported = attempt(packaged_ops.scale, *args, strict=strict, dynamic={"x": {0: "batch"}})
    assert "packaged_ops.scale.default" in str(exported.program.graph)


class Refuses(torch.nn.Module):
    def forward(self, x):
        raise ValueError("not today")


@pytest.mark.parametrize("strict", [True, False])
def test_an_error_of_the_model_itself_suggests_trying_eager_first(strict):
    error, _, line = refusal(Refuses(), strict=strict)
    assert line == 'raise ValueError("not today")'
    assert "does the model run in eager with these arguments?" in error.fix


class Labels(torch.nn.Module):
    def __init__(self, label):
        super().__init__()
        self.label = label

    def forward(self, x):
        return x + 1, self.label


@pytest.mark.parametrize("label", ["half", True])
def test_values_that_a_package_cannot_return_are_refused_before_compiling(label):
    error, text, line = refusal(Labels(label))
    assert line == "def forward(self, x):"
    assert "Labels returns a value that a package cannot return" in text
    assert repr(label) in error.found
