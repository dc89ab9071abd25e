"""A library leaves the parameters alone that `mutates_args` does not name."""

import re
from dataclasses import dataclass

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from opforge import native
from opforge.errors import WrongResult
from support.native.traced_kernels import block
from support.native.traced_oracle import Body

X = {"x": native.tensor("n", dtype="fp32")}


@triton.jit
def dirty(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n) * 2
    tl.store(out + i, v, mask=i < n)
    tl.store(x + i, v, mask=i < n)


@triton.jit
def opaque(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [tl.load(x + i)], tl.float32, is_pure=False, pack=1
    )
    tl.store(out + i, v)


@triton.jit
def broken(x, out, n, BLOCK: tl.constexpr):
    tl.store(out, tl.load(x).no_such_method())


def twice(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    dirty[(x.numel(),)](x, out, x.numel(), BLOCK=128)
    return out


@dataclass(frozen=True)
class Weights:
    """A record, so that names and paths differ."""

    scale: Tensor


def in_record(w: Weights) -> Tensor:
    out = torch.empty_like(w.scale)
    dirty[(1,)](w.scale, out, 128, BLOCK=128)
    return out


def through_a_view(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    block[(1,)](out, x[2:].view(-1), 128, BLOCK=128)
    return out


def by_zero(x: Tensor) -> Tensor:
    x.zero_()
    return through_scratch(x)


def through_scratch(x: Tensor) -> Tensor:
    scratch, out = torch.empty_like(x), torch.empty_like(x)
    block[(1,)](x, scratch, 128, BLOCK=128)
    dirty[(1,)](scratch, out, 128, BLOCK=128)
    return out


def refusal(fn, **specs):
    with pytest.raises(WrongResult) as caught:
        Body(fn, specs or X).built  # noqa: B018  # building is what fails
    return caught.value


def notes(fn, **options):
    (built,) = Body(fn, X, **options).built
    return built.notes


def test_a_write_to_an_undeclared_parameter_is_refused_with_the_kernel_and_the_launch():
    error = refusal(twice)
    assert re.fullmatch(
        r"kernel dirty \(.*\.py:\d+\) writes to 'x', which mutates_args does not name", error.what
    )
    assert re.fullmatch(r"launched at .*\.py:\d+", error.found)
    assert error.fix == "mutates_args=['x'], or write to a tensor that the body allocates"
    assert error.parameter == "x"


def test_a_field_is_named_by_its_path():
    error = refusal(in_record, w__scale=native.tensor("n", dtype="fp32"))
    assert error.parameter == "w.scale"
    assert "mutates_args=['w.scale']" in error.fix


def test_a_write_through_a_view_is_a_write():
    assert "kernel block" in refusal(through_a_view).what


def test_a_fill_of_an_undeclared_parameter_is_refused():
    assert refusal(by_zero).what.startswith("an in-place operation writes to 'x'")


@pytest.mark.parametrize("fn", [twice, through_a_view, by_zero])
def test_a_declared_parameter_may_be_written(fn):
    assert notes(fn, mutates=("x",)) == []


def test_a_kernel_that_cannot_be_analysed_is_built_with_a_note():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        opaque[(1,)](x, out, 128, BLOCK=128)
        return out

    (note,) = notes(body)
    assert "it cannot be told what kernel opaque" in note
    assert "inline assembly" in note
    assert note.endswith("make sure that it does not write to x")
    assert notes(body, mutates=("x",)) == []


def test_a_kernel_that_does_not_compile_is_left_to_the_compiler():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        broken[(1,)](x, out, 128, BLOCK=128)
        return out

    assert notes(body) == []
