"""`opforge.package` on a GPU: Lei Mao's study with real numbers, and a kernel in every place.

Each build takes about a minute, so one fixture builds for all tests.
"""

import importlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

import opforge
from opforge.errors import UnsupportedBody
from support.gpu.packages import skip_unless_loaded

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    sys.path.insert(0, str(EXAMPLES))
    try:
        module = importlib.import_module("silu_model")
    finally:
        sys.path.remove(str(EXAMPLES))
    return module.study(tmp_path_factory.mktemp("study"))


def verified(package):
    return {r.text.partition(":")[0]: r.value for r in package.report if r.name == "verified"}


@pytest.mark.parametrize("strict", [True, False])
def test_a_registered_kernel_is_packaged_both_ways(study, strict):
    package = study["registered", strict]
    assert isinstance(package, opforge.Package), package
    assert package.strict is strict
    assert [op.seen_through for op in package.ops] == [True]
    assert [(k.name, k.op) for k in package.kernels] == [("silu_kernel", "examples::model_silu")]
    assert package.needed == ()
    assert list(verified(package)) == ["batch=8 (traced)", "batch=1", "batch=17"]
    assert max(verified(package).values()) < 0.05
    assert "without importing opforge" in str(package)


def test_a_bare_launch_is_packaged_strict(study):
    package = study["bare launch", True]
    assert isinstance(package, opforge.Package), package
    assert [(k.name, k.op) for k in package.kernels] == [("silu_kernel", "")]


def test_a_bare_launch_is_explained_where_it_cannot_be_exported(study):
    error = study["bare launch", False]
    assert isinstance(error, UnsupportedBody)
    assert "silu_model.py:" in str(error)
    assert "launches the Triton kernel silu_kernel (" in str(error)


def test_the_largest_batch_runs_as_well(study):
    package = study["registered", False]
    skip_unless_loaded()
    model = sys.modules["silu_model"]
    torch.manual_seed(0)
    expected = model.Model(model.silu).to("cuda").eval()
    x = torch.randn(1024, 256, dtype=torch.bfloat16, device="cuda")
    torch.testing.assert_close(package.load()(x), expected(x), rtol=2e-2, atol=2e-2)


def test_traces_show_the_kernel(study, tmp_path):
    for file in study["registered", False].profile(tmp_path, repeat=3):
        events = json.loads(file.read_text())["traceEvents"]
        launched = [e["name"] for e in events if e.get("cat") == "kernel"]
        assert any("silu_kernel" in name for name in launched), launched


@triton.autotune([triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})], key=["n"])
@triton.jit
def scale_kernel(x_ptr, out_ptr, factor, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * factor, mask=mask)


@dataclass(frozen=True)
class Scale:
    bias: Tensor
    factor: float = 2.0


@opforge.op("gpu_packaging::scale")
def scale(x: Tensor, cfg: Scale) -> Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    scale_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, cfg.factor, n)
    return out + cfg.bias


@opforge.op("gpu_packaging::opaque", mode="custom_op")
def opaque(x: Tensor) -> Tensor:
    return x.sort(dim=-1).values


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.randn(64))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return opaque(scale(x, Scale(self.bias, 3.0))) + self.calls


def test_several_ops_a_config_an_autotuner_and_a_mutated_buffer(tmp_path):
    model = Counting().cuda()
    x = torch.randn(6, 64, device="cuda")
    package = opforge.package(
        model, (x,), tmp_path / "counting.pt2", dynamic={"x": {0: ("rows", 1, 512)}}
    )
    assert list(verified(package)) == [
        "rows=6 (traced)",
        "rows=1",
        "rows=13",
        "rows=6 (traced), again",
    ]
    assert {op.name: op.seen_through for op in package.ops} == {
        "gpu_packaging::scale": True,
        "gpu_packaging::opaque": False,
    }
    assert [k.name for k in package.kernels] == ["scale_kernel"]
    assert model.calls.item() == 0
