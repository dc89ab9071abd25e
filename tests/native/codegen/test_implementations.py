"""Operators with several implementations, called through C, C++ and Python."""

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from opforge import native
from opforge.native.codegen import sources
from support.native import hand_made
from support.native.cpp_programs import build_archive, build_program
from support.standin.library import OpforgeTensor, Refused

FLAT = "x: fp32, [m, n], compact\nwhere n % 2 == 0"
STRIDED = "x: fp32, [m, n], any strides\nm: 1 to 64"


def program():
    return hand_made.library(hand_made.copying(), hand_made.add(), hand_made.everything())


@pytest.fixture
def library(make_own):
    return make_own(program())


@pytest.fixture
def demo(library):
    return native.open(library.folder, host_memory=True)


def launched(standin):
    names = [launch.function for launch in standin.launches]
    standin.reset()
    return names


COMPACT, ODD, COLUMNS = torch.zeros(2, 4), torch.zeros(2, 3), torch.zeros(4, 2).t()


@pytest.mark.parametrize(
    ("x", "kernel", "strides"),
    [
        (COMPACT, "flat_kernel", (4, 1)),
        (ODD, "strided_kernel", (1, 2)),
        (COLUMNS, "strided_kernel", (1, 2)),
    ],
)
def test_the_first_that_covers_a_call_is_taken_and_its_outputs_described(
    library, standin, x, kernel, strides
):
    (described,) = library.outputs("copy", x)
    assert described.stride == strides
    (made,) = library.run("copy", x)
    assert made.stride() == strides
    assert launched(standin) == [kernel]


def with_(library, index, x, out):
    given = [ctypes.byref(OpforgeTensor.of(t)) for t in (x, out)]
    library.check(library.operator("copy", "_with")(ctypes.c_int(index), *given, None))


def test_a_call_that_the_forced_one_does_not_cover_is_refused(library, standin):
    with pytest.raises(Refused) as refused:
        with_(library, 0, COLUMNS, torch.empty(2, 4))
    assert refused.value.status == "INVALID_ARGUMENT"
    assert refused.value.text == (
        "demo_copy: implementation 0 (copy_flat): x: strides [1, 2] for shape [2, 4], "
        "expected compact strides"
    )
    with pytest.raises(Refused) as refused:
        with_(library, 0, ODD, torch.empty(2, 3))
    assert refused.value.status == "UNCOVERED"
    assert "copy_flat: x fp32 [m, n], with m = 2, n = 3:\n    path 1: " in refused.value.text
    assert "copy: x" not in refused.value.text
    assert standin.launches == []


def refusal(library, *arguments):
    with pytest.raises(Refused) as refused:
        library.run("copy", *arguments)
    return refused.value.status, refused.value.text


def test_if_none_covers_a_call_each_is_named_with_its_requirements(library):
    status, text = refusal(library, torch.zeros(65, 3))
    assert status == "UNCOVERED"
    assert text.splitlines() == [
        "demo_copy: nothing was built for this call (x fp32 [65, 3]):",
        "  copy_flat: x fp32 [m, n], with m = 65, n = 3:",
        "    path 1: n % 2 == 0 does not hold (ops.py:91)",
        "  copy: x fp32 [m, n] strides [x.stride[0], x.stride[1]]: x: m is 65, expected 1 to 64",
    ]
    status, text = refusal(library, torch.zeros(65, 4)[:, ::2])
    assert status == "UNCOVERED"
    assert "copy_flat: x fp32 [m, n]: x: strides [4, 2] for shape" in text
    assert "any call" not in text


def test_an_argument_that_no_implementation_accepts_is_refused_as_invalid(library):
    assert refusal(library, torch.zeros(4)) == (
        "INVALID_ARGUMENT", "demo_copy: x: has 1 dimension, expected 2"
    )  # fmt: skip
    assert refusal(library, torch.zeros(2, 2, dtype=torch.float16)) == (
        "INVALID_ARGUMENT", "demo_copy: x: type fp16, expected fp32"
    )  # fmt: skip


def test_a_reason_that_all_closest_cases_share_is_given_once(make):
    """Two sums of equal shapes, the second of any strides: the shapes are wrong for both."""
    op, kernels = hand_made.add()
    strides = {t: tuple(hand_made.Var(f"{t}.stride[{d}]") for d in (0, 1)) for t in "xy"}
    plain = next(c for c in op.cases if len(c.tensors[0].shape) == 2)
    tensors = tuple(
        hand_made.TensorCase(t.param, True, t.dtype, t.shape, strides[t.param])
        for t in plain.tensors
    )
    strided = hand_made.Case(tensors, paths=plain.paths, implementation=1)
    served = (
        hand_made.Implementation("flat", "demo::flat", ""),
        hand_made.Implementation("any", "demo::any", ""),
    )
    both = hand_made.Op(
        "add", "demo::add", "", op.params, op.outputs, (plain, strided), implementations=served
    )
    library = make(hand_made.library((both, kernels)))
    half = torch.zeros(2, 4, dtype=torch.float16)
    for x in (half, half.t().contiguous().t()):
        with pytest.raises(Refused) as refused:
            library.run("add", x, torch.zeros(2, 5, dtype=torch.float16))
        assert refused.value.status == "INVALID_ARGUMENT"
        assert refused.value.text == ("demo_add: y: size 5 in dimension 1, expected 4 as in x (n)")


def built(tmp_path, text):
    build_archive(program(), tmp_path)
    (tmp_path / "main.cpp").write_text(text)
    binary = build_program(tmp_path, tmp_path / "main.cpp", "demo")
    done = subprocess.run([str(binary)], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


OUTPUT = (
    "demo_copy: implementation 0 (copy_flat): out: is fp32 [2, 4] strides [1, 2], expected fp32 "
    "[2, 4] with strides [4, 1]"
)
DISPATCH = r"""
#include <demo.hpp>

#include <cstdio>
#include <cstdlib>
#include <type_traits>
#include <utility>

namespace op {
#define OPFORGE_OPERATOR(op, implementations, tensors, values, outputs, function) struct op;
#include <demo_dispatch.inc>
}
#ifdef OPFORGE_OPERATOR
#error "it is still defined"
#endif

template <typename Op> struct Operator;
#define OPFORGE_OPERATOR(op_, implementations_, tensors_, values_, outputs_, function) \
    template <> struct Operator<op::op_> { \
        static constexpr int implementations = implementations_; \
        static constexpr int tensors = tensors_, values = values_, outputs = outputs_; \
        static constexpr auto call = &function; \
        static constexpr auto call_with = &function##_with; \
    };
#include <demo_dispatch.inc>

static_assert(Operator<op::copy>::implementations == 2 && Operator<op::add>::tensors == 2);
static_assert(Operator<op::everything>::values == 14 && Operator<op::everything>::outputs == 2);
static_assert(std::is_same_v<std::remove_const_t<decltype(Operator<op::copy>::call)>,
                             OpforgeStatus (*)(const OpforgeTensor *, OpforgeTensor *, void *)>);

static void *take(std::size_t bytes, int, opforge::Stream) { return std::malloc(bytes); }
static void give(void *data, std::size_t, int, opforge::Stream) { std::free(data); }

template <typename Function> static void refused(Function call)
{
    try {
        call();
        std::puts("not refused");
    } catch (const opforge::Error &error) {
        std::printf("%d %s\n", static_cast<int>(error.status()), error.what());
    }
}

int main()
{
#define OPFORGE_IMPLEMENTATION(op, index, name, tensors, values, outputs, function) \
    std::printf("%s %d %s %s\n", #op, index, name, #function);
#include <demo_dispatch.inc>

    float numbers[8] = {}, written[8] = {};
    const opforge::Tensor x(numbers, {2, 4});
    opforge::Tensor rows(written, {2, 4}), columns(written, {2, 4}, {1, 2});
    demo::copy(x, rows);
    demo::copy_with(0, x, rows);
    demo::copy_with(1, x, columns);
    if (Operator<op::copy>::call_with(1, x.raw(), columns.raw(), nullptr) != OPFORGE_OK) {
        std::puts(demo_last_error());
    }
    const opforge::Allocator allocator(take, give);
    const long described = demo::copy_outputs_with(1, x).stride(1);
    const long made = demo::copy_with(1, x, allocator).stride(1);
    std::printf("%ld %ld\n", described, made);
    refused([&] { demo::copy_with(2, x, rows); });
    refused([&] { demo::copy_with(0, x, columns); });
    refused([&] { demo::copy_outputs_with(-1, x); });
    for (const OpforgeImplementation &one : demo::copy_implementations()) {
        std::printf("%s of %zu\n", one.op, demo::copy_implementations().size());
    }
    std::puts(demo::copy_implementations()[1].name);
    return 0;
}
"""


def test_a_template_dispatcher_includes_the_operators(tmp_path):
    said = built(tmp_path, DISPATCH)
    index = "demo_copy: implementation: {}, expected 0 (copy_flat) or 1 (copy)"
    assert said == [
        "copy 0 copy_flat demo_copy",
        "copy 1 copy demo_copy",
        "add 0 add demo_add",
        "everything 0 everything demo_everything",
        "2 2",
        f"1 {index.format(2)}",
        f"1 {OUTPUT}",
        f"1 {index.format(-1)}",
        "demo::copy_flat (ops.py:90) of 2",
        "demo::copy (ops.py:95) of 2",
        "copy",
    ]


def test_python_lists_them_and_takes_one_by_index_or_name(demo, standin):
    assert [(i.index, i.name, i.op, i.guards) for i in demo.copy.implementations] == [
        (0, "copy_flat", "demo::copy_flat (ops.py:90)", FLAT),
        (1, "copy", "demo::copy (ops.py:95)", STRIDED),
    ]
    assert [i.name for i in demo.add.implementations] == ["add"]
    assert demo.copy(COMPACT).stride() == (4, 1)
    assert demo.copy(COMPACT, implementation=1).stride() == (1, 2)
    assert demo.copy(COMPACT, implementation="copy").stride() == (1, 2)
    demo.copy(COMPACT, out=torch.empty(2, 4), implementation="copy_flat")
    assert launched(standin) == [
        "flat_kernel", "strided_kernel", "strided_kernel", "flat_kernel"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["demo.h", "demo_dispatch.inc"])
def test_the_headers_are_as_accepted(request, name):
    own = sources(hand_made.library(hand_made.copying(), name="demo"))[f"include/{name}"].decode()
    file = Path(__file__).parent / "golden" / f"several_{name}"
    shown = own[own.index("/* demo::copy") :] if name == "demo.h" else own
    if request.config.getoption("--accept"):
        file.write_text(shown)
    assert shown == file.read_text()
