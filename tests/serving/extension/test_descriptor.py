"""Tensor descriptors: what a launch reads of them, how they are passed, and what is refused."""

import ctypes
import dataclasses
import sys
from dataclasses import dataclass

import pytest
import torch

from support.serving import Tensor, param
from support.standin.tensor_maps import Map

F32, F16 = torch.float32, torch.float16
MAP = (7, 4, 0, False, (8, 4))
I32, I64, BOOL = ctypes.c_int32, ctypes.c_int64, ctypes.c_bool


@dataclass
class Descriptor:
    base: object
    shape: object
    strides: object
    block_shape: object
    padding: str = "zero"


@dataclass
class Rounding(Descriptor):
    round_f32_to_tf32: bool = False


@dataclass
class Laid(Descriptor):
    layout: object = None


CLASSES = ((Descriptor, False, False), (Rounding, False, True), (Laid, True, False))


def described(cls=Descriptor, address=0x7000_0000, **given):
    return cls(Tensor(F32, address), [16, 12], [12, 1], [8, 4], **given)


def kernel_of(serving, *maps, flags=2, layout=None, arch=90, count=1):
    """A kernel of `count` descriptors of fp32 in blocks of 8 x 4, and an integer."""
    serving.standin.reset(capability=(arch // 10, arch % 10))
    names = [f"x{i}" for i in range(count)]
    kernel = serving.module.Kernel(
        "k", (*map(param, names), param("n")), serving.hand_over, (), {}, "k.py:7", CLASSES
    )
    image = serving.image("k", (arch,), more=(False, maps, flags))
    dtypes = (*[(F32, (8, 4), layout)] * count, "int")
    kernel.add((), dtypes, {}, [((*["d"] * count, "i32"), image)])
    return kernel.bind((1,))


def read(serving, *types):
    seen = []
    serving.standin.execute = lambda launched: seen.append(
        tuple(launched.read(i, t) for i, t in enumerate(types))
    )
    return seen


def test_a_map_is_followed_by_sizes_and_strides(serving):
    launch = kernel_of(serving, MAP)
    seen = read(serving, Map, I32, I32, I64, I64, I32)
    launch(described(), 5)
    ((made, *numbers),) = seen
    assert numbers == [16, 12, 12, 1, 5]
    assert (made.address, made.element, [*made.extents[:2]]) == (0x7000_0000, 7, [12, 16])
    assert ([*made.box[:2]], made.between[0], made.fill) == ([4, 8], 48, 0)
    assert serving.handed == []


@pytest.mark.parametrize(
    ("given", "element", "fill"),
    [
        (described(Rounding), 7, 0),
        (described(Rounding, round_f32_to_tf32=True), 11, 0),
        (described(padding="nan"), 7, 1),
    ],
)
def test_a_map_has_the_descriptors_rounding_and_padding(serving, given, element, fill):
    launch = kernel_of(serving, MAP)
    seen = read(serving, Map)
    launch(given, 5)
    ((made,),) = seen
    assert (made.element, made.fill) == (element, fill)


@pytest.mark.parametrize("flags", [1, 2])
def test_without_maps_the_parts_and_flags_are_passed(serving, flags):
    launch = kernel_of(serving, flags=flags, arch=80)
    parts = (ctypes.c_uint64, *[I64] * 4, *[BOOL] * flags, I32, I32, I64, I64, I32)
    seen = read(serving, *parts)
    launch(described(Rounding, padding="nan", round_f32_to_tf32=True), 5)
    assert seen == [(0x7000_0000, 16, 12, 12, 1, *[True] * flags, 16, 12, 12, 1, 5)]


def test_an_image_that_takes_the_place_of_another_has_its_own_maps(serving, collect):
    """What is kept for a launch is not found by where its image was."""
    for swizzle in (0, 1):
        launch = kernel_of(serving, (7, 4, swizzle, False, (8, 4)))
        seen = read(serving, Map)
        launch(described(), 5)
        ((made,),) = seen
        assert made.swizzle == swizzle
        # Only images that exist can be unloaded.
        serving.module.unload()
        del launch
        serving.images.clear()
        collect()


@pytest.mark.parametrize(
    "change",
    [
        {"shape": (16, 12, 1)}, {"shape": [2**31, 12]}, {"strides": [2**64, 1]},
        {"shape": (), "strides": (), "block_shape": ()}, {"block_shape": [8, 4.0]},
    ],
)  # fmt: skip
def test_descriptors_that_are_odd_are_handed_over(serving, change):
    launch = kernel_of(serving, MAP)
    launch(dataclasses.replace(described(), **change), 5)
    ((*_, reason),) = serving.handed
    assert reason == (
        "x0 is not a valid descriptor: shape, strides and block_shape must have the same number of "
        "integers, and sizes must be below 2**31"
    )
    assert serving.told[0][1] == "none"


def test_as_many_descriptors_as_there_is_room_for(serving):
    launch = kernel_of(serving, *[MAP] * 32, count=32)
    seen = read(serving, *[Map, I32, I32, I64, I64] * 32, I32)
    launch(*(described(address=0x7000_0000 + 64 * i) for i in range(32)), 5)
    assert [one.address for one in seen[0][:-1:5]] == [0x7000_0000 + 64 * i for i in range(32)]
    assert seen[0][-1] == 5
    with pytest.raises(ValueError, match=r"^33 tensor maps; the most are 32$"):
        kernel_of(serving, *[MAP] * 33, count=33)
    with pytest.raises(ValueError, match=r"^k: it has 33 descriptors; the most are 32$"):
        kernel_of(serving, count=33)


def test_nothing_of_a_descriptor_is_kept_but_its_layout(serving, collect):
    layout, other = object(), object()
    launch = kernel_of(serving, MAP, layout=repr(layout))
    given, wrong = described(Laid, layout=layout), described(Laid, layout=other)
    launch(given, 5)
    tracked = (given.base, given.shape, layout, other, Laid, F32)
    before = [sys.getrefcount(one) for one in tracked]
    for _ in range(100):
        launch(given, 5)
        launch(wrong, 5)
        serving.handed.clear()
        serving.told.clear()
    assert [sys.getrefcount(one) for one in tracked] == before
    counted = sys.getrefcount(layout)
    del launch
    collect()
    assert sys.getrefcount(layout) == counted - 1
