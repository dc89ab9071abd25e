"""Every example op, against a reference and through torch's own opcheck."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import opforge
from support.processes import environment, python

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def example():
    sys.path.insert(0, str(EXAMPLES))
    yield importlib.import_module
    sys.path.remove(str(EXAMPLES))


def interpreted(script):
    """What a script prints when Triton's interpreter runs its kernels on the CPU."""
    env = environment(EXAMPLES, TRITON_INTERPRET="1")
    done = subprocess.run(
        [python(), "-c", script], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SILU = """
import torch
from silu import silu, silu_backward
x = torch.randn(3, 5, dtype=torch.double, requires_grad=True)
torch.testing.assert_close(silu(x), torch.nn.functional.silu(x))
assert torch.autograd.gradcheck(silu, (x,))
torch.library.opcheck(silu, (x,))
torch.library.opcheck(silu_backward, (torch.randn(3, 5), torch.randn(3, 5)))
(grad,) = torch.autograd.grad(silu(x).sum(), x, create_graph=True)
try:
    grad.sum().backward()
except RuntimeError as error:
    print(error)
"""


def test_silu_is_torch_silu_forward_and_backward_and_refuses_a_second_derivative():
    assert "examples::silu_backward" in interpreted(SILU)


def test_silu_is_seen_through_by_the_compiler_and_so_is_its_backward(example):
    module = example("silu")
    assert opforge.info(module.silu).mode == "triton_op"
    assert opforge.info(module.silu_backward).mode == "triton_op"
    assert [k.kernel for k in opforge.info(module.silu).kernels] == [module.silu_kernel]


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


NATIVE = """
import torch
from native import ops
def check(name, *args):
    op, reference = getattr(ops, name), getattr(ops, f"{name}_reference")
    torch.testing.assert_close(op(*args), reference(*args), rtol=1e-3, atol=1e-3)
    torch.library.opcheck(op, args)
x, weight = torch.randn(3, 300), torch.randn(300)
check("silu", x)
check("add", x, torch.randn(300, 3).t())
check("rms_norm", x, weight, 1e-5)
check("softmax", x)
check("gemm", x.half(), torch.randn(70, 300).half().t(), 0.5)
"""


def test_the_ops_of_the_native_library_match_their_references():
    interpreted(NATIVE)


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


def test_the_demo_shows_runs_and_builds_silu_without_a_warning():
    env = environment()
    env.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [python(), EXAMPLES / "demo.py"], env=env, capture_output=True, text=True, check=False
    )
    # torch for CUDA says it where there is a compiler for CUDA and no GPU.
    told = [x for x in done.stderr.splitlines() if "No CUDA runtime is found" not in x]
    assert (done.returncode, told) == (0, [])
    for line in (
        "mode      triton_op: the compiler sees through it: it launches silu_kernel",
        "torch.export   examples.silu.default, aten.mul.Tensor",
        "triton_kernel_wrapper_functional, aten.mul.Tensor",
        "include/examples.h",
        "OpforgeStatus examples_silu(const OpforgeTensor *x",
        "torch.compile  one full graph",
        "opcheck        schema",
        "native.open    examples_silu on",
    ):
        assert line in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="it packages there: tests/gpu")
def test_the_study_exports_what_is_registered_and_explains_the_bare_launch(example, tmp_path):
    study = example("silu_model")
    outcomes = study.study(tmp_path)
    assert study.in_a_word(outcomes["registered", True]) == "exported"
    assert study.in_a_word(outcomes["registered", False]) == "exported"
    assert study.in_a_word(outcomes["bare launch", False]) == "UnsupportedBody"
    line = study.silu_kernel.fn.__code__.co_firstlineno
    assert f"silu_kernel ({study.__file__}:{line}) itself" in str(outcomes["bare launch", False])
