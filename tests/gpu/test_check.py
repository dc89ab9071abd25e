"""The check on a GPU: every row runs, CUDA graphs among them."""

import pytest
import torch
import triton
from torch import Tensor

import opforge
from support.gpu.kernels import autotuned, double


def grid(n):
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


def launch(x: Tensor) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    double[grid(x.numel())](x, out, x.numel(), BLOCK=128)
    return out


def launch_tuned(x: Tensor) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    autotuned[grid(x.numel())](x, out, x.numel())
    return out


@pytest.mark.parametrize("fn", [launch, launch_tuned])
def test_an_op_with_kernels_passes_every_row(op_name, fn):
    op = opforge.op(op_name(), backward=lambda ctx, grad: grad * 2)(fn)
    x = torch.randn(8, 128, device="cuda")
    report = opforge.check(op, x, reference=lambda x: x * 2)
    assert report.ok, report
    assert {r.name for r in report if r.status == "skipped"} == {"native", "dtensor"}, report


def test_a_plain_op_on_the_gpu_passes_every_row(op_name):
    @opforge.op(op_name(), mutates_args=["total"])
    def accumulate(x: Tensor, total: Tensor) -> Tensor:
        total.add_(x)
        return x * 2

    x = torch.randn(8, 128, device="cuda", dtype=torch.bfloat16)
    report = opforge.check(accumulate, x, torch.zeros_like(x))
    assert report.ok, report
    assert report["cuda graph"].status == "pass"


def test_a_body_that_synchronises_fails_the_cuda_graph_with_the_way_out(op_name):
    @opforge.op(op_name(), fake=torch.empty_like)
    def reads(x: Tensor) -> Tensor:
        return x * x.sum().item()

    found = opforge.check(reads, torch.ones(4, device="cuda"), only="cuda graph")["cuda graph"]
    assert found.status == "fail"
    assert "not permitted when stream is capturing" in found.reason
    assert ".item()" in found.fix
    torch.randn(4, device="cuda")  # the failed capture has left random numbers usable


def test_cpu_tensors_for_kernels_fail_with_the_way_out(op_name):
    op = opforge.op(op_name())(launch)
    report = opforge.check(op, torch.ones(4), only=["eager", "fake"])
    assert report["eager"].status == "fail"
    assert "pass CUDA tensors" in report["eager"].fix
    assert report["fake"].status == "skipped"


def test_a_sharding_rule_is_checked_on_the_gpu(op_name):
    from torch.distributed.tensor import Replicate, Shard  # noqa: PLC0415  # takes a third of a second

    either = [([Replicate()], [Replicate()]), ([Shard(0)], [Shard(0)])]
    op = opforge.op(op_name(), sharding=lambda x: either)(launch)
    found = opforge.check(op, torch.randn(8, 64, device="cuda"), only="dtensor")["dtensor"]
    assert found.status == "pass", found
