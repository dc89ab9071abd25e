"""Every example op, against a reference and through torch's own opcheck."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

import opforge

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def example():
    sys.path.insert(0, str(EXAMPLES))
    yield importlib.import_module
    sys.path.remove(str(EXAMPLES))


def test_silu_is_torch_silu_forward_and_backward(example):
    silu = example("silu").silu
    x = torch.randn(3, 5, dtype=torch.double, requires_grad=True)
    torch.testing.assert_close(silu(x), torch.nn.functional.silu(x))
    assert torch.autograd.gradcheck(silu, (x,))
    assert torch.autograd.gradgradcheck(silu, (x,))
    torch.library.opcheck(silu, (x,))


def test_rms_norm_is_torch_rms_norm_forward_and_backward(example):
    norm = example("rms_norm")
    x = torch.randn(3, 8, dtype=torch.double, requires_grad=True)
    weight = torch.randn(8, dtype=torch.double, requires_grad=True)

    def call(x, weight):
        return norm.rms_norm(x, norm.NormConfig(weight, eps=1e-5, rounding=norm.Rounding.INPUT))

    torch.testing.assert_close(call(x, weight), torch.nn.functional.rms_norm(x, (8,), weight, 1e-5))
    assert torch.autograd.gradcheck(call, (x, weight))
    torch.library.opcheck(opforge.info(norm.rms_norm).overload, (x, weight, 1e-5, "input"))


def test_rms_norm_compiles_with_its_config_as_an_argument(example):
    norm = example("rms_norm")
    compiled = torch.compile(norm.rms_norm, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (3, 5):
        x, cfg = torch.randn(rows, 8), norm.NormConfig(torch.randn(8))
        torch.testing.assert_close(compiled(x, cfg), norm.rms_norm(x, cfg))


def test_momentum_step_changes_both_tensors_of_its_state(example):
    step = example("momentum_step")
    weight, velocity, grad = torch.randn(4), torch.randn(4), torch.randn(4)
    expected_velocity = 0.5 * velocity + grad
    expected_weight = weight - 0.1 * expected_velocity
    before = weight._version, velocity._version
    step.momentum_step(step.State(weight, velocity), grad, lr=0.1, momentum=0.5)
    torch.testing.assert_close(velocity, expected_velocity)
    torch.testing.assert_close(weight, expected_weight)
    assert (weight._version, velocity._version) > before
    args = (torch.randn(4), torch.randn(4), torch.randn(4), 0.1)
    torch.library.opcheck(opforge.info(step.momentum_step).overload, args)


def test_the_demo_runs_and_prints_the_explanation(example, capsys):
    example("demo").main()
    printed = capsys.readouterr().out
    assert "examples::silu" in printed
    assert "one full graph" in printed
