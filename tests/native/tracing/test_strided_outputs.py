"""Outputs that are declared as strided: the body sees the caller's strides as symbols."""

import pytest
import torch
from torch import Tensor

from opforge import native
from opforge.errors import BadDeclaration, UnsupportedBody
from opforge.native.ir.case_text import conditions
from opforge.native.ir.cases import Launch, Output, ScalarValue
from opforge.native.ir.expr import Var, make
from support.native.traced_kernels import block, rows
from support.native.traced_oracle import Body

T = native.tensor
M, N = Var("m"), Var("n")
STRIDES = (Var("out.stride[0]"), Var("out.stride[1]"))
X = {"x": T("m n", dtype="fp32"), "returns": T("m n", dtype="fp32", layout="strided")}


def built(fn, **specs):
    (found,) = Body(fn, specs or X).built
    return found.case


def passed(path):
    """The numbers that the only launch of a path gets, by name."""
    (launch,) = [step for step in path.steps if isinstance(step, Launch)]
    return {a.name: a.value for a in launch.arguments if isinstance(a, ScalarValue)}


def copied(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    rows[(x.shape[0],)](x, out, out.stride(0), out.stride(1), x.shape[1], BLOCK=64)
    return out


def test_kernels_get_the_strides_of_the_caller():
    (path,) = built(copied).paths
    assert path.outputs == (Output("fp32", (M, N), (N, 1), strided=True),)
    assert set(STRIDES) <= set(passed(path).values())


def test_a_body_may_branch_on_the_strides():
    def body(x: Tensor) -> Tensor:
        # Where a workspace comes first, another allocation becomes the output.
        if x.shape[0] > 1000:
            torch.empty(1, device=x.device)
        out = torch.empty_like(x)
        if out.is_contiguous():
            block[(1,)](x, out, x.numel(), BLOCK=64)
        else:
            rows[(x.shape[0],)](x, out, out.stride(0), out.stride(1), x.shape[1], BLOCK=64)
        return out

    found = built(body)
    kernels = [path.steps[0].kernel_name for path in found.paths]
    assert sorted(kernels) == ["block", "block", "rows", "rows"]
    assert {path.outputs for path in found.paths} == {
        (Output("fp32", (M, N), (N, 1), strided=True),)
    }


def test_a_kernel_that_is_not_told_every_stride_takes_compact_outputs_only():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        if x.shape[0] == 7:
            rows[(x.shape[0],)](x, out, out.stride(0), out.stride(1), x.shape[1], BLOCK=64)
        elif x.shape[0] == 8:
            rows[(x.shape[0],)](x, out, out.stride(0), 1, x.shape[1], BLOCK=64)
        else:
            block[(1,)](x, out.view(-1), x.numel(), BLOCK=64)
        return out

    strided = {conditions(p): p.outputs[0].strided for p in built(body).paths if not p.refused}
    assert {under for under, any_strides in strided.items() if any_strides} == {"m == 7"}


def test_strides_that_no_kernel_is_told_are_refused():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        block[(1,)](x, out, x.numel(), BLOCK=64)
        return out

    with pytest.raises(UnsupportedBody) as caught:
        built(body)
    assert caught.value.what == (
        "output out is declared as strided, but its kernels are not told the strides"
    )
    assert "pass out.stride(0), out.stride(1), ... to each kernel" in caught.value.fix


def test_a_body_may_refuse_some_strides():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        if out.stride(1) != 1:
            raise ValueError("rows must be dense")
        rows[(x.shape[0],)](x, out, out.stride(0), 1, x.shape[1], BLOCK=64)
        return out

    found = built(body)
    refused = {conditions(path): path.refused for path in found.paths}
    assert refused["out.stride[1] == 1"] == ""
    assert "the body raises ValueError: rows must be dense" in refused["out.stride[1] != 1"]


def test_a_size_that_the_body_computes_has_a_name_of_its_own():
    def body(x: Tensor) -> Tensor:
        out = x.new_empty((x.shape[0], x.shape[1] // 2))
        rows[(x.shape[0],)](x, out, out.stride(0), out.stride(1), x.shape[1], BLOCK=64)
        return out

    said = T("m half", dtype="fp32", layout="strided")
    (path,) = built(body, x=X["x"], returns=said).paths
    half = make("//", N, 2)
    assert path.outputs == (Output("fp32", (M, half), (half, 1), strided=True),)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (T("n m", dtype="fp32"), "fp32 [n, m]"),
        (T("m", dtype="fp32", layout="strided"), "fp32 [m]"),
        (T("m n", dtype="fp16", layout="strided"), "fp16 [m, n]"),
    ],
)
def test_another_output_than_declared_is_an_error(said, shown):
    with pytest.raises(UnsupportedBody) as caught:
        built(copied, x=X["x"], returns=said)
    assert caught.value.what == "the body returns a tensor as out that differs from its declaration"
    assert caught.value.found == f"fp32 [m, n], declared as {shown}"


def test_a_view_of_a_strided_output_is_refused():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        rows[(x.shape[0],)](x, out, out.stride(0), out.stride(1), x.shape[1], BLOCK=64)
        return out.t()

    with pytest.raises(UnsupportedBody) as caught:
        built(body, x=T("m m", dtype="fp32"), returns=T("m m", dtype="fp32", layout="strided"))
    assert "out is declared as strided, but the body returns a view" in caught.value.found


def test_a_shape_that_depends_on_a_callers_strides_is_refused():
    def body(x: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.empty_like(x)
        more = x.new_empty(out.stride(0))
        rows[(x.shape[0],)](x, out, out.stride(0), out.stride(1), x.shape[1], BLOCK=64)
        return out, more

    with pytest.raises(UnsupportedBody) as caught:
        built(body, x=X["x"], returns=(X["returns"], None))
    assert "the shape of output out1 depends on the strides of an output" in caught.value.found


def test_a_stride_that_must_be_a_constant_is_told():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        rows[(x.shape[0],)](x, out, 1, 1, x.shape[1], BLOCK=out.stride(0))
        return out

    with pytest.raises(BadDeclaration) as caught:
        built(body, dims={"n": [16, 64]}, **X)
    assert caught.value.what.startswith("out.stride[0] must be a constant")
    assert caught.value.fix == (
        "pass out.stride[0] to the kernel as a number, or declare out with layout='contiguous'"
    )
