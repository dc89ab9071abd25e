"""`NAME_OP_workspace` tells before a call what the call will ask its allocator for."""

import ctypes
from dataclasses import replace

import pytest
import torch

from support.native import hand_made
from support.native.hand_made_calls import SPECIAL, everything, fresh
from support.standin.driver import NVIDIA
from support.standin.library import OpforgeTensor, Refused


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


def test_a_place_for_the_answer_is_needed(library):
    x = [ctypes.byref(OpforgeTensor.of(fresh((4,)))) for _ in range(2)]
    with pytest.raises(Refused) as refused:
        library.check(library.operator("add", "_workspace")(*x, None, None))
    assert refused.value.status == "INVALID_ARGUMENT"
    assert refused.value.text == "demo_add: bytes: is NULL, expected room for a number"


def test_one_implementation_is_asked(make):
    ops = make(hand_made.library(hand_made.copying()))
    found = ctypes.c_int64(-1)
    ask, x = (
        ops.operator("copy", "_workspace_with"),
        ctypes.byref(OpforgeTensor.of(torch.zeros(2, 4).t())),
    )
    ops.check(ask(1, x, None, ctypes.byref(found)))
    assert found.value == 0
    with pytest.raises(Refused, match=r"demo_copy: implementation 0 \(copy_flat\): x: strides"):
        ops.check(ask(0, x, None, ctypes.byref(found)))
    with pytest.raises(Refused, match=r"implementation: 2, expected 0 \(copy_flat\) or 1 \(copy\)"):
        ops.check(ask(2, x, None, ctypes.byref(found)))
