"""Fakes of the drop-in: the body where it can run, the assumption where it cannot."""

import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import opforge
from opforge.errors import OpforgeWarning, UnsupportedBody, WrongResult
from opforge.magi import magi_register_custom_op

Tensor = torch.Tensor


def numpy_body(x):
    """What FakeTensor refuses."""
    return torch.from_numpy(x.numpy() + 1)


def traced(op, *args):
    """What the op looks like to torch.compile, and then its result."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = torch.utils._pytree.tree_map_only(Tensor, mode.from_tensor, args)
        fake = op(*fakes)

    def function(*args):
        return op(*args)

    return fake, torch.compile(function, backend="aot_eager", fullgraph=True)(*args)


def fails_on_fakes(x):
    """As an extension that knows nothing of fake tensors: any error, not one of FakeTensor's."""
    if type(x) is not Tensor:
        raise KeyError("no kernel for this tensor")
    return x + 1


def test_any_failure_of_the_body_on_fakes_leads_to_the_assumption(op_name):
    @magi_register_custom_op(op_name())
    def op(x: Tensor) -> Tensor:
        return fails_on_fakes(x)

    fake, real = traced(op, torch.ones(3))
    assert fake.shape == (3,)
    assert real.tolist() == [2.0] * 3
    text = opforge.explain(op)
    assert "because the body fails on fakes: KeyError: 'no kernel for this tensor'" in text
    assert "; verified by a real call" in text


def test_after_a_call_that_the_body_refused_the_body_is_tried_again(op_name):
    @magi_register_custom_op(op_name())
    def op(x: Tensor, y: Tensor) -> Tensor:
        return x @ y

    with FakeTensorMode():
        assert op(torch.empty(2, 3), torch.empty(4, 5)).shape == (2, 3)
        assert opforge.info(op).fake_source == "assumed"
        assert op(torch.empty(2, 3), torch.empty(3, 5)).shape == (2, 5)
    assert opforge.info(op).fake_source == "body"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert op(torch.ones(2, 3), torch.ones(3, 5)).shape == (2, 5)


def test_a_refusal_where_nothing_can_be_assumed_names_the_option(op_name):
    @magi_register_custom_op(op_name())
    def op(x: Tensor) -> list[Tensor]:
        return [numpy_body(x)]

    with (
        FakeTensorMode(),
        pytest.raises(UnsupportedBody, match="fix: give infer_output_meta_fn=") as caught,
    ):
        op(torch.empty(2))
    assert "numpy" in str(caught.value)


def test_a_mistake_that_a_real_call_would_show_is_raised_on_fakes_too(op_name):
    @magi_register_custom_op(op_name())
    def op(x: Tensor) -> Tensor:
        return x[:1]

    with FakeTensorMode(), pytest.raises(WrongResult):
        op(torch.empty(2))


@pytest.mark.parametrize(
    ("body", "difference"),
    [
        (lambda x: numpy_body(x)[:1].clone(), r"shape \(1,\), expected \(2,\)"),
        (lambda x: numpy_body(x).double(), "dtype torch.float64, expected torch.float32"),
    ],
    ids=["shape", "dtype"],
)
def test_a_wrong_assumption_warns_once_and_the_call_works(op_name, body, difference):
    name = op_name()

    @magi_register_custom_op(name)
    def op(x: Tensor) -> Tensor:
        return body(x)

    with FakeTensorMode():
        op(torch.empty(2))
    with pytest.warns(OpforgeWarning, match=difference) as caught:
        out = op(torch.ones(2))
    assert torch.equal(out, body(torch.ones(2)))
    assert torch.equal(out, op(torch.ones(2)))
    (warning,) = caught
    assert name in str(warning.message)
    assert "output i looks like tensor input i" in str(warning.message)
    assert "give infer_output_meta_fn=" in str(warning.message)
    assert "a real call returned something else" in opforge.explain(op)


def test_a_list_that_names_an_absent_tensor_warns_and_the_call_works(op_name):
    @magi_register_custom_op(op_name(), infer_output_meta_fn=["y"])
    def op(x: Tensor, y: Tensor | None) -> Tensor:
        return x + 1

    with pytest.warns(OpforgeWarning, match="which is None in this call"):
        assert op(torch.ones(2), None).tolist() == [2.0, 2.0]
