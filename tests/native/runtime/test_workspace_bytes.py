"""`NAME_OP_workspace` tells before a call what the call will ask its allocator for."""

import ctypes
import functools
from dataclasses import replace

import pytest
import torch

from support.native import hand_made
from support.native.hand_made import Allocate, Var, times
from support.native.hand_made_calls import SPECIAL, everything, fresh
from support.native.hand_made_layouts import M, N, blend, turned, window
from support.standin.driver import NVIDIA
from support.standin.library import OpforgeTensor, Refused, numbers


def asked(standin, call):
    """The bytes that a call asks the driver for."""
    before = standin.allocated
    call()
    return standin.allocated - before


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_it_is_what_a_call_allocates(library, standin, rows, bias, mode):
    arguments = everything(rows, bias=bias, mode=mode)
    told = library.workspace("everything", *arguments, None, None)
    assert told == rows * 8 + 16
    assert told == asked(standin, lambda: library.run("everything", *arguments))


def test_it_is_zero_without_workspace(library, standin):
    assert library.workspace("add", fresh((4,)), fresh((4,)), None) == 0
    assert library.workspace("add", torch.empty(0), torch.empty(0), None) == 0
    assert asked(standin, lambda: library.run("add", fresh((4,)), fresh((4,)))) == 0


@pytest.mark.parametrize("take", [0, 1, 4])
def test_it_follows_computed_sizes_down_to_nothing(make, standin, take):
    ops = make(hand_made.library(window()))
    arguments = [torch.zeros(4, 3, dtype=torch.int8) for _ in range(2)] + [take, 1]
    told = ops.workspace("window", *arguments, None)
    assert told == (4 - take) * 3 + 32
    assert told == asked(standin, lambda: ops.run("window", *arguments))


@pytest.mark.parametrize(("what", "bytes_"), [("scratch", 64), ("profile", 32), ("shared", 0)])
@pytest.mark.parametrize("n", [4, 0])
def test_scratch_memory_of_kernels_counts(library, standin, what, bytes_, n):
    x = torch.zeros(n)
    told = library.workspace("special", x, SPECIAL[what])
    assert told == bytes_ * n * 3 * 2
    assert told == asked(standin, lambda: library.call("special", x, SPECIAL[what]))


@pytest.mark.parametrize("vendor", [NVIDIA], indirect=True)
def test_scratch_memory_is_that_of_the_image_for_the_device(make, standin):
    op, kernels = hand_made.special()
    (one,) = [k for k in kernels if k.key == "special_scratch"]
    smaller = replace(one.images[0], global_scratch_size=16)
    kernels[kernels.index(one)] = replace(one, images=(smaller, one.images[1]))
    ops, x = make(hand_made.library((op, kernels))), torch.zeros(4)
    for capability, size in (((8, 0), 16), ((9, 0), 64)):
        standin.reset(capability=capability)
        assert ops.workspace("special", x, SPECIAL["scratch"]) == size * 4 * 3 * 2
        ops.unload()


def test_scratch_memory_is_that_of_the_variant_for_the_addresses(make, standin):
    op, kernels = hand_made.add()
    scratched = [
        replace(k, images=tuple(replace(i, global_scratch_size=64) for i in k.images))
        if k.key == "add_fp32_plain"
        else k
        for k in kernels
    ]
    ops = make(hand_made.library((op, scratched)))
    tensors = [fresh((16,)), fresh((16,)), fresh((16,))]
    assert ops.workspace("add", *tensors) == 0
    tensors[1] = fresh((16,), shift=1)
    told = ops.workspace("add", *tensors)
    assert told == 64
    assert told == asked(standin, lambda: ops.call("add", *tensors))


def broadcasting():
    """`blend`, which takes workspace of the common shape."""
    op, kernels = blend()
    cases = []
    for case in op.cases:
        (path,) = case.paths
        size = times(*(Var(f"s[{d}]") for d in range(len(case.tensors[0].shape))), 4)
        steps = (Allocate("sum", size), *path.steps)
        cases.append(replace(case, paths=(replace(path, steps=steps),)))
    return replace(op, cases=tuple(cases)), kernels


@pytest.mark.parametrize(
    ("shapes", "size"),
    [([(3, 1), (4,)], 48), ([(), (2, 1, 5)], 40), ([(), ()], 4), ([(0, 1), (4,)], 0)],
)
def test_it_is_that_of_the_common_shape(make, standin, shapes, size):
    ops, tensors = make(hand_made.library(broadcasting())), [torch.zeros(s) for s in shapes]
    told = ops.workspace("blend", *tensors, None, None)
    assert told == size
    assert told == asked(standin, lambda: ops.run("blend", *tensors, None))


def strided():
    """`turned`, which takes workspace where rows of the output are not dense."""
    op, kernels = turned()
    (case,) = op.cases
    dense, other = case.paths
    other = replace(other, steps=(Allocate("copy", times(M, N, 4)), *other.steps))
    return replace(op, cases=(replace(case, paths=(dense, other)),)), kernels


def test_it_is_that_of_the_path_for_the_given_output(make, standin):
    ops, x = make(hand_made.library(strided())), torch.empty(3, 4)
    for out, size in ((torch.empty(4, 3), 0), (torch.empty(3, 4).t(), 48)):
        told = ops.workspace("turned", x, out)
        assert told == size
        assert told == asked(standin, functools.partial(ops.call, "turned", x, out))
    # Without one, that of the output as the body makes it: column by column.
    assert ops.workspace("turned", x, None) == 48


def test_it_touches_no_memory_and_launches_nothing(library, standin):
    arguments = everything()
    given = [OpforgeTensor.of(a) for a in arguments[:3]]
    for tensor in given:
        tensor.data = None
    assert library.workspace("everything", *given, *arguments[3:], None, None) == 40
    out, stats = library.outputs("everything", *arguments)
    assert library.workspace("everything", *given, *arguments[3:], out, stats) == 40
    assert library.workspace("special", torch.zeros(4), SPECIAL["scratch"]) > 0
    allowed = (
        "cuInit", "cuDeviceGet", "cuDriverGetVersion", "cuDevicePrimaryCtxRetain",
        "hipInit", "hipGetDeviceCount", "hipDeviceGet", "hipGetDeviceProperties",
    )  # fmt: skip
    assert [call for call in standin.calls if not call.startswith(allowed)] == []


def test_it_needs_no_driver_where_nothing_depends_on_the_device(library, standin):
    library.workspace("add", fresh((4,)), fresh((4,)), None)
    assert standin.calls == []


def refusals(library, op, *arguments):
    """What a call says, and what the workspace function says."""
    for ask in (library.call, library.workspace):
        with pytest.raises(Refused) as refused:
            ask(op, *arguments)
        yield refused.value.status, refused.value.text


def described(shape):
    tensor = OpforgeTensor.of(torch.zeros(1))
    tensor.ndim, tensor.shape = len(shape), numbers(shape)
    return tensor


X = torch.zeros(4, 2)
REFUSED = {
    "dtype": ("add", X.double(), X.clone(), X.clone()),
    "rank": ("add", torch.zeros(2, 2, 2), torch.zeros(2, 2, 2), torch.zeros(2, 2, 2)),
    "size": ("add", X, torch.zeros(4, 3), X.clone()),
    "NULL": ("add", None, X, X.clone()),
    "output": ("add", X, X.clone(), torch.zeros(2, 4)),
    "overlap": ("add", X, X.clone(), X),
    "path": ("everything", *everything(1001), torch.zeros(1001, 8), torch.zeros(1001)),
    "choice": ("special", torch.zeros(4), 99),
    "grid": ("special", described([2**31]), SPECIAL["scratch"]),
    "cluster": ("special", described([2**30]), SPECIAL["cluster"]),
    "variant": ("matmul", torch.zeros(4, 5000), torch.zeros(5000, 4), torch.zeros(4, 4)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses_what_the_call_refuses_in_the_same_words(library, standin, name):
    placed = [a.placed() if isinstance(a, OpforgeTensor) else a for a in REFUSED[name]]
    said, asked_first = refusals(library, *placed)
    assert asked_first == said
    assert said[0] in {"INVALID_ARGUMENT", "UNCOVERED"}
    assert standin.launches == []


def test_a_launch_that_nothing_was_built_for_is_refused_in_the_same_words(make):
    op, kernels = hand_made.add()
    first = op.cases[2]
    empty, full = first.paths
    (launch,) = full.steps
    launch = replace(launch, variants=launch.variants[:1])
    case = replace(first, paths=(empty, replace(full, steps=(launch,))))
    ops = make(hand_made.library((replace(op, cases=(case,)), kernels)))
    tensors = fresh((16,), shift=1), fresh((16,)), fresh((16,))
    said, asked_first = refusals(ops, "add", *tensors)
    assert asked_first == said
    assert "nothing was built for its arguments:" in said[1]


def test_sizes_that_overflow_are_refused_in_the_same_words(make):
    n = hand_made.Var("n")
    steps = (Allocate("workspace", times(n, 2**62)),)
    case = hand_made.Case(
        (hand_made.TensorCase("x", True, "i8", (n,)),), paths=(hand_made.Path((), (), steps),)
    )
    op = hand_made.Op("large", "", "", (hand_made.TensorParam("x", True),), (), (case,))
    ops = make(hand_made.library((op, [])))
    said, asked_first = refusals(ops, "large", torch.zeros(2, dtype=torch.int8))
    assert asked_first == said
    # No memory is that large, but the number is told.
    assert ops.workspace("large", torch.zeros(1, dtype=torch.int8)) == 2**62


def test_a_place_for_the_answer_is_needed(library):
    x = [ctypes.byref(OpforgeTensor.of(fresh((4,)))) for _ in range(2)]
    with pytest.raises(Refused) as refused:
        library.check(library.operator("add", "_workspace")(*x, None, None))
    assert refused.value.status == "INVALID_ARGUMENT"
    assert refused.value.text == "demo_add: bytes: is NULL, expected room for a number"


def test_one_implementation_is_asked(make):
    ops = make(hand_made.library(hand_made.copying()))
    found = ctypes.c_int64(-1)
    ask, x = ops.operator("copy", "_workspace_with"), ctypes.byref(OpforgeTensor.of(X.t()))
    ops.check(ask(1, x, None, ctypes.byref(found)))
    assert found.value == 0
    with pytest.raises(Refused, match=r"demo_copy: implementation 0 \(copy_flat\): x: strides"):
        ops.check(ask(0, x, None, ctypes.byref(found)))
    with pytest.raises(Refused, match=r"implementation: 2, expected 0 \(copy_flat\) or 1 \(copy\)"):
        ops.check(ask(2, x, None, ctypes.byref(found)))
