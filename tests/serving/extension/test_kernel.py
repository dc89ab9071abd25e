"""Kernels and what is added to them, and everything that they refuse."""

import sys
import weakref

import pytest
import torch

from support.serving import Tensor, param

F32 = torch.float32
PARAMETER = (
    "(name, is_constexpr, has_default, default, specializes, specializes_alignment, is_typed)"
)
VARIANT = "k: a variant is (types, image) or (types, image, returned), not 3"


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("k", ("n",), print), TypeError, "k: a parameter is a tuple, not 'n'"),
        (("k", (("n",),), print), TypeError, PARAMETER),
        (("k", (), 3), TypeError, "k: hand_over is 3, which cannot be called"),
        (("k", (), print, ([],)), TypeError,
         "a watch is (list, reason) or (dict or object, name, accepted values, reason)"),
        (("k", tuple(param(f"p{i}") for i in range(257)), print), ValueError,
         "k: it has 257 parameters; the most are 256"),
    ],
)  # fmt: skip
def test_kernels_that_are_none(serving, arguments, error, text):
    with pytest.raises(error) as refused:
        serving.module.Kernel(*arguments)
    assert str(refused.value) == text


def test_a_kernel_may_have_256_parameters(serving, standin):
    params = tuple(param(f"p{i}") for i in range(256))
    kernel = serving.kernel(*params)
    kernel.add((), ("int",) * 256, {}, [(("i32",) * 256, serving.image())])
    seen = serving.read_arguments(*["i32"] * 256, "p", "p")
    kernel.bind((1,))(*range(256))
    assert seen == [(*range(256), 0, 0)]


PLAIN = param("fixed", specializes=False), param("loose", aligns=False)
TYPES = ("p", "i32", "i32", "i32")


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"constants": ()}, ValueError, "k: 0 constants for 1 constexpr parameters"),
        ({"dtypes": ("int",)}, ValueError, "k: 1 dtypes for 4 parameters"),
        ({"dtypes": (F32, "fp8", "int", "int")}, ValueError, "k: n has no dtype 'fp8'"),
        ({"variants": []}, ValueError, "k: an instance needs a variant"),
        ({"variants": [3]}, TypeError, VARIANT),
        ({"types": ("p",)}, ValueError, "k: a variant has 1 types for 4 parameters"),
        ({"types": ("p", "i33", "i32", "i32")}, ValueError, "k: n has no type 'i33'"),
        ({"types": ("p", "fp32:16", "i32", "i32")}, ValueError, "k: n has no type 'fp32:16'"),
        ({"types": ("p", "i32:8", "i32", "i32")}, ValueError, "k: n has no type 'i32:8'"),
        ({"types": ("p", "much too long", "i32", "i32")}, ValueError,
         "k: n has no type 'much too long'"),
        ({"types": ("p", 3, "i32", "i32")}, ValueError, "k: n has no type 3"),
        ({"types": ("i32", "i32", "i32", "i32")}, ValueError,
         "k: x is a pointer, which cannot be passed as 'i32'"),
        ({"types": ("p", "p16", "i32", "i32")}, ValueError,
         "k: n is int, which cannot be passed as 'p16'"),
        ({"types": ("p", "none", "i32", "i32")}, ValueError,
         "k: n is int, which cannot be passed as 'none'"),
        ({"types": ("p", "u1", "i32", "i32")}, ValueError,
         "k: n is int, which cannot be passed as 'u1'"),
        ({"types": ("p", "i32", "1", "i32")}, ValueError,
         "k: fixed is not specialized, but a variant takes it as '1'"),
        ({"types": ("p", "i32", "i32:16", "i32")}, ValueError,
         "k: fixed is not specialized, but a variant takes it as 'i32:16'"),
        ({"types": ("p", "i32", "i32", "i32:16")}, ValueError,
         "k: loose is not specialized, but a variant takes it as 'i32:16'"),
        ({"options": {3: 4}}, TypeError, "k: the name of an option is a str, not 3"),
        ({"options": {f"o{i}": i for i in range(33)}}, ValueError,
         "k: 33 options; the most are 32"),
    ],
)  # fmt: skip
def test_instances_that_are_none(serving, changed, error, text):
    kernel = serving.kernel(
        param("x"), param("n"), *PLAIN, param("BLOCK", constexpr=True), name="k"
    )
    given = {"constants": (64,), "dtypes": (F32, "int", "int", "int"), "options": {}} | changed
    given.setdefault("variants", [(given.pop("types", TYPES), serving.image())])
    before = sys.getrefcount(F32)
    with pytest.raises(error) as refused:
        kernel.add(**given)
    assert str(refused.value) == text
    del given
    assert sys.getrefcount(F32) <= before
    kernel.bind((1,))(Tensor(F32), 1, 2, 3, 64)
    assert serving.handed[0][-1] == "nothing was built"


def test_ones_are_taken_where_only_alignment_is_not_specialized(serving):
    kernel = serving.kernel(*PLAIN)
    kernel.add((), ("int", "int"), {}, [(("i32", "1"), serving.image())])
    assert kernel.bind((1,))(5, 1) is None


def test_more_names_of_options_than_a_kernel_can_know(serving):
    kernel = serving.kernel(name="k")
    image = serving.image()
    for i in range(32):
        kernel.add((), (), {f"option_{i}": 1}, [((), image)])
    with pytest.raises(ValueError, match="more") as refused:
        kernel.add((), (), {"one_more": 1}, [((), image)])
    assert str(refused.value) == "k: its instances have more than 32 options"


@pytest.mark.parametrize("name", ["stream_of", "device_of", "allocate"])
def test_configure_takes_what_can_be_called(serving, name):
    given = dict.fromkeys(("stream_of", "device_of", "allocate"), print) | {name: 3}
    with pytest.raises(TypeError) as refused:
        serving.module.configure(**given)
    assert str(refused.value) == f"{name} is 3, which cannot be called"


class Owner:
    """Holds its kernel, as a jitted function does."""

    def hand_over(self, *given):
        return given


def test_a_kernel_in_a_cycle_is_collected(serving, collect):
    owner = Owner()
    owner.kernel = serving.module.Kernel(
        "k", (param("n", default=owner),), owner.hand_over, (([owner], "r"),)
    )
    owner.kernel.add((), (owner,), {"o": owner}, [(("p",), serving.image())])
    owner.launch = owner.kernel.bind(owner)
    gone = weakref.ref(owner)
    del owner
    collect()
    assert gone() is None
