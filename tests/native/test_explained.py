"""`explain` of a declared op says what a C library has of it, or why it has nothing."""

import re

import torch
from torch import Tensor

import opforge
from opforge import native
from support.native.torch_bodies import Program

X = {"x": native.tensor("n", dtype="fp32")}
HERE = rf"{re.escape(__file__)}:\d+"


def lines(body, **specs):
    """The lines that `explain` has about C."""
    said = opforge.explain(Program(body, **(specs or X)).body.op)
    found = [line.partition("native    ")[2] for line in said.splitlines()]
    return [line for line in found if "C library" in line or "kernel" in line]


def test_the_next_case_is_tried():
    def body(x: Tensor) -> Tensor:
        return x.sort().values if x.dtype is torch.float16 else x * 2

    refused, opening, became = lines(body, x=native.tensor("n", dtype=("fp16", "fp32", "bf16")))
    assert re.fullmatch(f"not in a C library for x fp16 1-d: aten.sort at {HERE}", refused)
    assert opening == "would be in a C library, for x fp32 1-d, number 2 of 3 cases:"
    assert became.endswith("became kernel torch_mul")


def test_the_sizes_that_lead_to_a_refused_call_are_named():
    def body(x: Tensor, y: Tensor) -> Tensor:
        z = x + y
        return z.sort().values if x.shape[0] < 20 else z

    vectors = {"x": native.tensor("m", dtype="fp32"), "y": native.tensor("n", dtype="fp32")}
    (line,) = lines(body, **vectors)
    case = "x fp32 1-d, y fp32 1-d where m < 20"
    assert re.fullmatch(f"not in a C library for {case}: aten.sort at {HERE}", line)


def test_cases_that_lack_the_same_share_a_line():
    def body(x: Tensor) -> Tensor:
        return x.sort().values

    (line,) = lines(body, x=native.tensor("n", dtype=("fp16", "fp32", "bf16")))
    cases = "x fp16 1-d; x fp32 1-d; x bf16 1-d"
    assert line.startswith(f"not in a C library for {cases}: aten.sort at ")


def test_sizes_that_the_body_refuses_hide_no_kernel_of_others():
    def body(x: Tensor) -> Tensor:
        if x.shape[0] > 32:
            raise ValueError("too long")
        return x * 2

    opening, became = lines(body)
    assert opening == "in a C library, for x fp32 1-d:"
    assert became.endswith("became kernel torch_mul")


def test_a_size_without_a_bound_is_named():
    def body(x: Tensor) -> Tensor:
        for _ in range(x.shape[0]):
            x = x + 1
        return x

    (line,) = lines(body)
    assert line.startswith("not in a C library for x fp32 1-d: n must be a constant")
