"""Variants of a launch: those that Triton's JIT would make, and not too many."""

import pytest
import torch
from torch import Tensor

from opforge import native
from opforge.native.ir.cases import ONE, Launch
from support.native.traced_kernels import (
    annotated,
    launching,
    strided4,
    take,
    unspecialized,
)
from support.native.traced_oracle import Body

T = native.tensor


def launch_of(fn, **specs):
    (found,) = Body(fn, specs).built
    (launch,) = [s for p in found.case.paths for s in p.steps if isinstance(s, Launch)]
    return launch


def forms(launch):
    """(types of values, aligned, divisible) of each variant, arguments by name."""
    names = [a.name for a in launch.arguments]
    return [
        (
            "".join({"i32": "i", "i64": "l", ONE: "1", "fp32": "f"}.get(t, "*") for t in v.types),
            "".join(names[i] for i in v.aligned),
            "".join(names[i] for i in v.divisible),
        )
        for v in launch.variants
    ]


def test_widths_alignments_and_multiples():
    def body(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        take[(1,)](x, out, x.shape[0])
        return out

    launch = launch_of(body, x=T("n", dtype="fp16"), y=T("n", dtype="fp16"))
    assert forms(launch) == [
        ("**i", "xout", "a"),
        ("**i", "xout", ""),
        ("**i", "", ""),
        ("**l", "xout", "a"),
        ("**l", "", ""),
    ]


def test_multiples_that_are_known_need_no_condition():
    body = launching(lambda x, out: take[(1,)](x, out, x.shape[1], 32 * x.shape[0]))
    launch = launch_of(body, x=T("m n", dtype="fp16"), dims={"n": [64, 96], "m": (0, 1000)})
    assert forms(launch) == [("**ii", "xout", ""), ("**ii", "", "")]


def test_a_guard_on_a_remainder_makes_a_multiple_known():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        assert x.shape[0] % 64 == 0
        take[(1,)](x, out, x.shape[0] // 2, x.shape[0])
        return out

    launch = launch_of(body, x=T("n", dtype="fp16"), dims={"n": (0, 1000)})
    assert forms(launch)[0] == ("**ii", "xout", "")


def test_do_not_specialize_is_respected():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        n = x.shape[0]
        unspecialized[(1,)](x, out, n, n, 1)
        return out

    launch = launch_of(body, x=T("n", dtype="fp16"), dims={"n": (0, 1000)})
    assert forms(launch) == [("**ii", "xout", ""), ("**ii", "", "")]
    assert dict(launch.constants) == {"c": "1"}


def test_annotated_parameters_have_their_type_whatever_the_value():
    body = launching(lambda x, out: annotated[(1,)](x, out, 1, 2, x.shape[0], True))
    launch = launch_of(body, x=T("n", dtype="fp16"))
    assert {v.types[2:] for v in launch.variants} == {("i64", "fp32", "i32", "u1")}


@pytest.mark.parametrize("tensors", [2, 3])
def test_strided_tensors_of_rank_four_make_few_variants(tensors):
    def body(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty(x.shape, device=x.device)
        third = out if tensors == 2 else x
        strided4[(1,)](
            x, y, out, *x.stride(), *y.stride(), *third.stride(), *x.shape, B=1
        )  # fmt: skip
        return out

    specs = {n: T("a b c d", dtype="fp16", layout="strided") for n in "xy"}
    launch = launch_of(body, **specs)
    assert len(launch.variants) <= 40


def test_a_bool_works_in_memory_and_as_an_argument():
    body = launching(lambda x, out: take[(1,)](x, out, x.shape[0] > 5))
    launch = launch_of(body, x=T("n", dtype="bool"))
    assert {v.types for v in launch.variants} == {("*u1", "*u1", "u1")}


def test_scalars_keep_their_declared_type():
    def body(x: Tensor, a: float, b: float, c: int, d: int) -> Tensor:
        out = torch.empty_like(x)
        take[(1,)](x, out, a, b, c, d)
        return out

    launch = launch_of(
        body,
        x=T("n", dtype="fp16"),
        a=native.scalar("fp32"),
        b=native.scalar("fp64"),
        c=native.scalar("i8"),
        d=native.scalar("u32"),
    )
    assert {v.types[2:] for v in launch.variants} == {("fp32", "fp64", "i8", "u32")}
