"""Constants and options: which are one, and which are told apart."""

import pytest
import torch

from support.serving import param

F32, F16 = torch.float32, torch.float16
BLOCK = param("BLOCK", constexpr=True)

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


class Equal:
    def __init__(self, action):
        self.action = action

    def __eq__(self, other):
        return self.action()

    __hash__ = None


def fail():
    raise ValueError("not comparable")


def test_what_comparing_raises_is_raised(serving):
    kernel = serving.kernel(BLOCK)
    kernel.add((Equal(fail),), (), {}, [((), serving.image())])
    with pytest.raises(ValueError, match="not comparable"):
        kernel.bind((1,))(Equal(fail))
