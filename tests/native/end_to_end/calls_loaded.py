"""The libraries as torch operators: `opforge.load`, with the source there, against torch."""

import pytest
import torch

import opforge
from opforge.errors import OpforgeWarning
from opforge.registry import registry
from support.native import kinds as source
from support.native.calling import BUILT, DEVICE, place
from support.native.kinds import Affine, Rounding
from support.standin.interpreter import Interpreter


@pytest.fixture(params=["C++", "ctypes"])
def loaded(request, standin):
    adapter = request.param == "C++"
    made = opforge.load(BUILT / "kinds", host_memory=DEVICE == "cpu", adapter=adapter)
    if standin is not None:
        standin.reset()
        standin.execute = Interpreter(made.manifest)
    yield made
    made.close()
    made.unload()
    if standin is not None:
        assert not standin.errors, standin.errors[0]


def count(standin, expected):
    """How many launches went through the library, where that is known."""
    if standin is not None:
        assert len(standin.launches) == expected


@pytest.mark.parametrize("act", ["relu", None])
@pytest.mark.parametrize("with_bias", [False, True])
def test_choices_and_a_missing_tensor(loaded, standin, act, with_bias):
    x, bias = torch.randn(100), torch.randn(100) if with_bias else None
    given = [None if t is None else place(t) for t in (x, bias)]
    found = source.choose(*given, act, True).cpu()
    expected = x + bias if with_bias else x
    torch.testing.assert_close(found, expected.relu() if act == "relu" else expected)
    count(standin, 1)


def test_a_dataclass_is_flattened_as_before(loaded, standin):
    x, shift = torch.randn(3, 10) * 5, torch.randn(10)
    cfg = Affine(2.0, place(shift), Rounding.UP)
    torch.testing.assert_close(source.affine(place(x), cfg).cpu(), (x * 2 + shift).ceil())
    count(standin, 1)


def test_an_output_of_any_strides_is_allocated_contiguously(loaded, standin):
    x = torch.randn(3, 5)
    found = source.negated(place(x))
    assert found.is_contiguous()
    torch.testing.assert_close(found.cpu(), -x)
    count(standin, 1)


def test_an_input_is_changed_in_place(loaded, standin):
    x = place(torch.randn(200))
    # `place` raises it as well, on a GPU.
    before, version = x.clone(), x._version
    source.scale_(x, -2.0)
    torch.testing.assert_close(x, before * -2)
    assert x._version == version + 1
    count(standin, 1)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64, torch.bool, torch.float8_e5m2])
def test_every_dtype_gets_through(loaded, dtype):
    x = (torch.arange(24).view(4, 6) % 2).to(dtype)
    left, right = source.halves(place(x))
    assert left.dtype == right.dtype == dtype
    assert left.cpu().float().tolist() == x.float()[:, :3].tolist()
    assert right.cpu().float().tolist() == x.float()[:, 3:].tolist()


def test_a_call_that_is_not_covered_is_compiled(loaded, standin):
    x = torch.randn(100, dtype=torch.float64)
    with pytest.warns(OpforgeWarning, match="libkinds.so does not cover this call"):
        found = source.choose(place(x), None, "relu", True)
    torch.testing.assert_close(found.cpu(), x.relu())
    count(standin, 0)
    source.choose(place(x.float()), None, "relu", True)
    count(standin, 1)


def test_the_jit_is_asked_for_by_name(loaded, standin):
    x = torch.randn(100)
    with opforge.backend("jit"):
        torch.testing.assert_close(source.choose(place(x), None, "relu", True).cpu(), x.relu())
    count(standin, 0)


@pytest.fixture
def _without_swish():
    if registry.find("kinds::swish") is not None:
        opforge.unregister("kinds::swish")


@pytest.mark.usefixtures("_without_swish")
def test_a_backward_that_was_built_serves_autograd(loaded, standin):
    x, grad = place(torch.randn(100)).requires_grad_(), place(torch.randn(100))
    torch.ops.kinds.swish(x, 1.5).backward(grad)
    count(standin, 2)
    expected = x.detach().clone().requires_grad_()
    (expected * torch.sigmoid(1.5 * expected)).backward(grad)
    torch.testing.assert_close(x.grad, expected.grad)
