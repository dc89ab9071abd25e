"""Kernels and what is added to them: which constants and options are told apart."""

import weakref

import torch

from support.serving import param

F32, F16 = torch.float32, torch.float16
BLOCK = param("BLOCK", constexpr=True)


def test_a_kernel_may_have_256_parameters(serving, standin):
    params = tuple(param(f"p{i}") for i in range(256))
    kernel = serving.kernel(*params)
    kernel.add((), ("int",) * 256, {}, [(("i32",) * 256, serving.image())])
    seen = serving.read_arguments(*["i32"] * 256, "p", "p")
    kernel.bind((1,))(*range(256))
    assert seen == [(*range(256), 0, 0)]


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


TEXTS = (
    "1", "True", "1.0", "0.0", "-0.0", "'one more'", "None", "(1, 2)", "(1.0, 2)", "(True, 2)",
    "(1, 2, 3)", "(1, (2, 3.0))", "12345", "1180591620717411303424", "float('nan')", "[1]",
)  # fmt: skip


def constants():
    """Equal to those of an earlier call, but other objects where Python makes them anew."""
    return [*(eval(text) for text in TEXTS), F32, F16]


def test_constants_are_told_apart_by_type_and_value(serving, standin):
    kernel = serving.kernel(BLOCK)
    for i, constant in enumerate(constants()):
        kernel.add((constant,), (), {}, [((), serving.image(f"k{i}"))])
    launch = kernel.bind((1,))
    for constant in constants():
        launch(constant)
    assert [one.function for one in standin.launches] == [f"k{i}" for i in range(len(TEXTS) + 2)]


def test_options_are_told_apart_by_type_too(serving):
    kernel = serving.kernel()
    kernel.add((), (), {"num_warps": 4, "maxnreg": None}, [((), serving.image())])
    launch = kernel.bind((1,))
    assert launch(num_warps=4.0, maxnreg=None) == "handed over"
    assert launch(maxnreg=None, num_warps=4) is None
