"""Tensors that the C functions broadcast, to the shape that `_outputs` reports."""

import ctypes
import hashlib
import subprocess

import pytest
import torch

from support.native import hand_made
from support.native.cpp_programs import build_archive, build_program
from support.native.hand_made_layouts import add_to, blend
from support.standin.library import Refused


@pytest.fixture
def broadcasting(make):
    return make(hand_made.library(blend(), add_to()))


@pytest.fixture
def given(standin, broadcasting):
    """The strides that each launch was given."""
    types = {
        image["sha256"]: kernel["types"]
        for kernel in broadcasting.manifest["kernels"]
        for image in kernel["images"]
    }
    found = []

    def keep(launched):
        kinds = types[hashlib.sha256(launched.image).hexdigest()]
        numbers = [i for i, kind in enumerate(kinds) if kind == "i64"]
        found.append([launched.read(i, ctypes.c_int64) for i in numbers])

    standin.execute = keep
    return found


@pytest.mark.parametrize(
    ("shapes", "shape", "steps"),
    [
        (((2, 3), (3,)), (2, 3), [3, 1, 0, 1]),
        (((2, 1), (1, 3)), (2, 3), [1, 0, 0, 1]),
        (((2, 3), (2, 3)), (2, 3), [3, 1, 3, 1]),
        (((), (4,)), (4,), [0, 1]),
        (((), ()), (), []),
        (((5,), (2, 3, 1)), (2, 3, 5), [0, 0, 1, 3, 1, 0]),
    ],
)
def test_sizes_of_1_are_repeated_by_strides_of_0(broadcasting, given, shapes, shape, steps):
    x, y = map(torch.ones, shapes)
    (described,) = broadcasting.outputs("blend", x, y, None)
    assert described.sizes == shape
    (out,) = broadcasting.run("blend", x, y, None)
    assert out.shape == shape
    assert given == [steps]


@pytest.mark.parametrize(
    ("x", "y", "z", "said"),
    [
        ((2,), (3,), None, "y: size 3 in dimension 0, expected 2 as in x, or 1"),
        ((4, 2), (3,), None, "y: size 3 in dimension 0, expected 2 as in x, or 1"),
        ((1, 2), (3, 1), (4, 2), "z: size 4 in dimension 0, expected 3 as in y, or 1"),
        ((0,), (3,), None, "y: size 3 in dimension 0, expected 0 as in x, or 1"),
    ],
)
def test_other_sizes_are_refused_with_both_tensors(broadcasting, x, y, z, said):
    tensors = [None if shape is None else torch.ones(shape) for shape in (x, y, z)]
    for function in (broadcasting.outputs, broadcasting.run):
        with pytest.raises(Refused) as refused:
            function("blend", *tensors)
        assert refused.value.status == "INVALID_ARGUMENT"
        assert refused.value.text == f"demo_blend: {said}"


def test_a_tensor_with_too_many_dimensions_is_named(broadcasting):
    with pytest.raises(Refused) as refused:
        broadcasting.outputs("blend", torch.ones(2), torch.ones(1, 1, 2, 2), None)
    assert refused.value.text == "demo_blend: y: has 4 dimensions, expected 0 or 1 or 2 or 3"


def test_a_shape_beyond_64_bits_is_refused(broadcasting):
    def long(*shape):
        return torch.ones(1).expand(shape)

    with pytest.raises(Refused) as refused:
        broadcasting.outputs("blend", long(2**31, 1, 1), long(2**31, 4), None)
    assert "x: broadcast to shape [2147483648, 2147483648, 4]" in refused.value.text


def test_a_written_tensor_is_not_broadcast(broadcasting, given):
    broadcasting.call("add_to", torch.zeros(2, 3), torch.ones(3))
    assert given == [[0, 1]]
    with pytest.raises(Refused) as refused:
        broadcasting.call("add_to", torch.zeros(2, 1), torch.ones(3))
    assert "x: size 3 in dimension 1, expected 1 as in state (s[1])" in refused.value.text


def test_the_manifest_names_what_is_broadcast(broadcasting):
    assert [p.get("broadcast") for p in broadcasting.ops["add_to"]["params"]] == [None, True]


PROGRAM = r"""
#include "demo.hpp"
#include <cstdio>
#include <cstdlib>
template <typename Function> void say(Function call) {
    try { call(); } catch (const opforge::Error &e) { std::puts(e.what()); }
}
void show(const opforge::Tensor &tensor) {
    for (int d = 0; d < tensor.rank(); d++) {
        std::printf("%ld/%ld ", (long)tensor.size(d), (long)tensor.stride(d));
    }
    std::puts("");
}
int main() {
    float numbers[6] = {};
    const opforge::Tensor x(numbers, {2, 1}), y(numbers, {3});
    opforge::Allocator allocator(
        [](std::size_t bytes, int, opforge::Stream) { return std::malloc(bytes); },
        [](void *data, std::size_t, int, opforge::Stream) { std::free(data); });
    show(demo::blend(x, y, nullptr, allocator));
    show(opforge::expand(x, {4, 2, 3}));
    show(opforge::expand(y, {2, 3}));
    show(opforge::expand(opforge::Tensor(numbers, {}), {2}));
    say([&] { opforge::expand(y, {4}); });
    say([&] { opforge::expand(x, {2}); });
    say([&] { opforge::expand(y, {1, 1, 1, 1, 1, 1, 1, 1, 3}); });
}
"""


def test_cplusplus_broadcasts_and_expands(tmp_path):
    build_archive(hand_made.library(blend()), tmp_path)
    (tmp_path / "main.cpp").write_text(PROGRAM)
    binary = build_program(tmp_path, tmp_path / "main.cpp", "demo")
    done = subprocess.run([str(binary)], capture_output=True, text=True, check=True)
    refused = "expand: from the last dimension on, each size must be that of the shape, or 1"
    shown = ["2/3 3/1 ", "4/0 2/1 3/0 ", "2/0 3/1 ", "2/0 "]
    assert done.stdout.splitlines() == [*shown, *[refused] * 3]
