"""Every example op through the check on a GPU, with every row that applies to it."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import opforge

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture(scope="module")
def example():
    sys.path.insert(0, str(EXAMPLES))
    yield importlib.import_module
    sys.path.remove(str(EXAMPLES))


def skipped(report):
    return {row.name for row in report if row.status == "skipped"}


def test_silu(example):
    x = torch.randn(8, 128, device="cuda")
    report = opforge.check(example("silu").silu, x, reference=functional.silu)
    assert report.ok, report
    assert skipped(report) == {"dtensor"}, report


def test_the_gradient_of_silu(example):
    def reference(grad, x):
        return torch.ops.aten.silu_backward(grad, x)

    grad, x = torch.randn(2, 8, 128, device="cuda")
    report = opforge.check(example("silu").silu_backward, grad, x, reference=reference)
    assert report.ok, report
    assert skipped(report) == {"native", "dtensor", "autograd"}, report


def test_rms_norm(example):
    norm = example("rms_norm")

    def reference(x, cfg):
        return functional.rms_norm(x, (128,), cfg.weight, cfg.eps)

    cfg = norm.NormConfig(torch.randn(128, device="cuda"))
    report = opforge.check(
        norm.rms_norm, torch.randn(8, 128, device="cuda"), cfg, reference=reference
    )
    assert report.ok, report
    assert skipped(report) == {"native", "dtensor", "kernels visible"}, report


def randn(*shape):
    return torch.randn(*shape, device="cuda").bfloat16()


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("silu", lambda: [randn(8, 128)]),
        ("add", lambda: [randn(8, 128), randn(128, 8).t()]),
        ("rms_norm", lambda: [randn(8, 128), randn(128)]),
        ("softmax", lambda: [randn(8, 128)]),
        ("gemm", lambda: [randn(8, 128), randn(128, 64)]),
    ],
)
def test_operators_for_a_c_library(name, inputs, example):
    ops = example("native.ops")
    report = opforge.check(
        getattr(ops, name), *inputs(), reference=getattr(ops, f"{name}_reference")
    )
    assert report.ok, report
    assert skipped(report) == {"dtensor", "autograd"}, report


def test_momentum_step(example):
    step = example("momentum_step")
    state = step.State(*torch.randn(2, 64, device="cuda"))
    report = opforge.check(step.momentum_step, state, torch.randn(64, device="cuda"), lr=0.1)
    assert report.ok, report
    assert skipped(report) <= {
        "native",
        "dtensor",
        "kernels visible",
        "autograd",
        "vmap",
        "numerics",
    }, report
