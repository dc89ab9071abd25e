"""What the command line's texts and functions become."""

import pytest
import torch

from opforge.aoti_package.inputs import from_function, read_dynamic_texts, read_model
from opforge.errors import BadDynamic, BadInputs, NotPackageable, TargetFailed
from support import packaged_ops


def test_dimensions_are_read_with_and_without_a_range():
    assert read_dynamic_texts(("x:0=batch", "x:1=n:1:64", "cfg.weight:0=batch")) == {
        "x": {0: "batch", 1: ("n", 1, 64)},
        "cfg.weight": {0: "batch"},
    }


@pytest.mark.parametrize(
    "text", ["x=batch", "x:0", "x:0=", ":0=n", "x:a=n", "x:0=n:1", "x:0=n:a:b"]
)
def test_a_text_that_names_no_dimension_shows_how_to_write_one(text):
    with pytest.raises(BadDynamic, match="x:0=batch:1:1024"):
        read_dynamic_texts((text,))


def test_a_function_gives_args_and_kwargs():
    given = from_function(lambda: ((1, 2), {"y": 3}), "inputs.py:fn")
    assert (given.args, given.kwargs) == ((1, 2), {"y": 3})


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda: torch.ones(2), "a Tensor"),
        (lambda: (torch.ones(2), {}), "(Tensor, dict)"),
        (lambda: ((1,),), "(tuple)"),
    ],
)
def test_anything_else_is_refused(function, found):
    with pytest.raises(BadInputs) as raised:
        from_function(function, "inputs.py:fn")
    assert "inputs.py:fn must return (args, kwargs)" in str(raised.value)
    assert f"found: {found}\n" in str(raised.value)


def test_a_model_an_op_or_what_makes_a_model_will_do():
    model = packaged_ops.Block()
    assert read_model(model, "m") is model
    assert read_model(packaged_ops.double, "m") is packaged_ops.double
    assert read_model(packaged_ops.shift, "m") is packaged_ops.shift
    assert isinstance(read_model(packaged_ops.Block, "m"), packaged_ops.Block)
    assert isinstance(read_model(lambda: model, "m"), packaged_ops.Block)


def _raises():
    raise ValueError("no data here")


@pytest.mark.parametrize("read", [from_function, read_model])
def test_what_the_users_function_raises_is_shown_as_its_own(read):
    with pytest.raises(TargetFailed) as raised:
        read(_raises, "inputs.py:fn")
    assert str(raised.value).startswith("inputs.py:fn() raised\n\nTraceback")
    assert "no data here" in str(raised.value)
    assert "opforge/aoti_package" not in str(raised.value)


def test_something_else_is_refused():
    with pytest.raises(NotPackageable, match="m is neither a model nor an operator"):
        read_model(3, "m")
