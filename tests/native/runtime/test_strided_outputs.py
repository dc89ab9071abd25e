"""Outputs whose strides callers choose: bound in a call, and the body's own where none is given."""

import ctypes
import subprocess
from dataclasses import replace

import pytest
import torch

from support.native import hand_made
from support.native.cpp_programs import build_archive, build_program
from support.native.hand_made import Output
from support.native.hand_made_layouts import M, N, either, turned
from support.standin.library import Refused


@pytest.fixture
def ops(make):
    return make(hand_made.library(turned()))


@pytest.fixture
def launched(standin):
    """The kernels that are launched, each with the strides that it gets."""
    found = []

    def keep(launch):
        count = 1 if launch.function == "dense_kernel" else 2
        found.append([launch.function, *(launch.read(2 + i, ctypes.c_int64) for i in range(count))])

    standin.execute = keep
    return found


def test_a_kernel_gets_the_strides_of_the_output_that_is_given(ops, launched):
    x = torch.empty(3, 4)
    ops.call("turned", x, torch.empty(4, 10)[:, ::3][:, :3])
    ops.call("turned", x, torch.empty(4, 7)[:, :3])
    ops.call("turned", x, torch.empty(3, 4).t())
    assert launched == [["any_kernel", 10, 3], ["dense_kernel", 7], ["any_kernel", 1, 4]]


def test_an_output_that_is_not_given_has_the_strides_of_the_body(ops):
    (described,) = ops.outputs("turned", torch.empty(3, 4))
    assert (described.sizes, described.stride) == ((4, 3), (1, 4))


def test_a_path_of_compact_outputs_is_judged_by_the_strides_of_the_body(make):
    op, kernels = turned()
    (case,) = op.cases
    first, second = case.paths
    first = replace(first, outputs=(Output("fp32", (N, M), (M, 1)),))
    case = replace(case, paths=(first, second))
    ops = make(hand_made.library((replace(op, cases=(case,)), kernels)))
    (described,) = ops.outputs("turned", torch.empty(3, 4))
    assert described.stride == (3, 1)


def test_only_the_strides_are_free(ops):
    x = torch.empty(3, 4)
    wrong = [
        (torch.empty(3, 4).t()[:2], "out: is fp32 [2, 3] strides [1, 4], expected fp32 [4, 3]"),
        (torch.empty(12), "out: is fp32 [12], expected fp32 [4, 3]"),
        (torch.empty(4, 3, dtype=torch.int32), "out: is i32 [4, 3], expected fp32 [4, 3]"),
    ]
    for out, said in wrong:
        with pytest.raises(Refused) as refused:
            ops.call("turned", x, out)
        assert refused.value.text == f"demo_turned: {said} with any strides"
    for out, said in [
        (torch.empty(4, 1).expand(4, 3), "overlaps itself but is written to"),
        (x.t(), "out: overlaps x in memory but is written to"),
        (None, "out: is NULL or has no type"),
    ]:
        with pytest.raises(Refused) as refused:
            ops.call("turned", x, out)
        assert said in refused.value.text


def test_an_output_that_is_declared_as_contiguous_leads_to_the_next_case(make, launched):
    ops, x = make(hand_made.library(either())), torch.empty(3, 4)
    ops.call("either", x, torch.empty(4, 3))
    ops.call("either", x, torch.empty(3, 4).t())
    assert launched == [["dense_kernel", 3], ["any_kernel", 1, 4]]
    (described,) = ops.outputs("either", x)
    assert described.stride == (3, 1)


PROGRAM = r"""
#include "demo.hpp"
#include <cstdio>
#include <cstdlib>
void show(const opforge::Tensor &tensor) {
    std::printf("%ld %ld\n", (long)tensor.stride(0), (long)tensor.stride(1));
}
int main() {
    float numbers[12] = {}, room[40] = {};
    const opforge::Tensor x(numbers, {3, 4});
    opforge::Tensor out(room, {4, 3}, {10, 3}), other(room, {3, 3}, {10, 3});
    opforge::Allocator allocator(
        [](std::size_t bytes, int, opforge::Stream) { return std::malloc(bytes); },
        [](void *data, std::size_t, int, opforge::Stream) { std::free(data); });
    demo::turned(x, out);
    show(demo::turned_outputs(x));
    show(demo::turned(x, allocator));
    try { demo::turned(x, other); } catch (const opforge::Error &e) { std::puts(e.what()); }
}
"""


def test_cplusplus_passes_outputs_of_any_strides(tmp_path):
    build_archive(hand_made.library(turned()), tmp_path)
    (tmp_path / "main.cpp").write_text(PROGRAM)
    binary = build_program(tmp_path, tmp_path / "main.cpp", "demo")
    done = subprocess.run([str(binary)], capture_output=True, text=True, check=True)
    refused = "demo_turned: out: is fp32 [3, 3] strides [10, 3], expected fp32 [4, 3]"
    assert done.stdout.splitlines() == ["1 4", "1 4", f"{refused} with any strides"]


def test_paths_that_refuse_the_strides_of_their_own_body_say_so(make):
    op, kernels = turned()
    (case,) = op.cases
    dense, other = case.paths
    # Each body lays its output out as only the other one's guard takes it.
    dense = replace(dense, outputs=(Output("fp32", (N, M), (1, N), strided=True),))
    other = replace(other, outputs=(Output("fp32", (N, M), (M, 1), strided=True),))
    case = replace(case, paths=(dense, other))
    ops = make(hand_made.library((replace(op, cases=(case,)), kernels)))
    with pytest.raises(Refused) as refused:
        ops.outputs("turned", torch.empty(3, 4))
    assert refused.value.status == "UNCOVERED"
    assert refused.value.text.splitlines()[-2:] == [
        "    path 1: out.stride[1] == 1 does not hold (ops.py:3)",
        "    path 2: out.stride[1] != 1 does not hold (ops.py:3)",
    ]
