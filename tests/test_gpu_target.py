"""Tracing for an absent GPU: the answers that torch and Triton get, and for how long."""

import threading
import types

import pytest
import torch
import triton
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.amd.driver import HIPDriver
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaDriver

import opforge
from opforge import _compat
from opforge.errors import NeedsGpu
from support.launching import double, fill, no_gpu
from support.processes import TORCH_ALONE, run_python

Tensor = torch.Tensor


def current_target():
    return triton.runtime.driver.active.get_current_target()


@pytest.mark.parametrize(
    ("arch", "number"),
    [("sm_75", 75), ("sm_80", 80), ("sm_89", 89), ("sm_90", 90), ("sm_90a", 90), ("sm_100", 100)],
)
def test_tritons_driver_answers_for_the_target(arch, number):
    with opforge.target(arch):
        assert current_target() == GPUTarget("cuda", number, 32)
        assert triton.runtime.driver.active.get_current_device() == 0
        assert triton.runtime.driver.active.get_active_torch_device() == torch.device("cuda", 0)
        assert triton.runtime.driver.active.get_device_interface() is torch.cuda


@pytest.mark.parametrize(
    ("arch", "warp_size", "capability", "shared"),
    [
        ("gfx90a", 64, (9, 0), 65536),
        ("gfx942", 64, (9, 4), 65536),
        ("gfx950", 64, (9, 5), 163840),
        ("gfx1100", 32, (11, 0), 65536),
        ("gfx1102", 32, (11, 0), 65536),
    ],
)
def test_an_amd_gpu_is_stood_in_for(arch, warp_size, capability, shared):
    before = (torch.version.hip, torch.version.cuda)
    with opforge.target(arch):
        assert current_target() == GPUTarget("hip", arch, warp_size)
        found = torch.cuda.get_device_properties(0)
        features = ":sramecc+:xnack-" if warp_size == 64 else ""
        assert (found.gcnArchName, found.warp_size) == (arch + features, warp_size)
        assert torch.cuda.get_device_capability() == capability == (found.major, found.minor)
        assert "AMD" in torch.cuda.get_device_name()
        assert found.shared_memory_per_block == shared
        used = triton.runtime.driver.active.utils.get_device_properties(0)
        assert (used["max_shared_mem"], used["warpSize"]) == (shared, warp_size)
        assert torch.version.hip is not None
        assert torch.version.cuda is None
        assert HIPDriver.is_active()
        assert not CudaDriver.is_active()
        assert in_a_thread(lambda: (torch.version.hip, torch.version.cuda)) == before
        with opforge.target("sm_100"):
            assert torch.cuda.get_device_capability() == (10, 0)
            assert torch.version.hip is None
            assert CudaDriver.is_active()
        assert torch.cuda.get_device_capability() == capability
    assert (torch.version.hip, torch.version.cuda) == before
    assert type(torch.version) is types.ModuleType


def test_torch_cuda_answers_for_the_target():
    with opforge.target("sm_90"):
        assert torch.cuda.current_device() == 0
        assert torch.cuda.device_count() == 1
        assert torch.cuda.get_device_capability() == (9, 0)
        assert torch.cuda.get_device_capability(0) == (9, 0)
        assert torch.cuda.get_device_capability("cuda") == (9, 0)
        assert "H100" in torch.cuda.get_device_name()
        torch.cuda.synchronize()
        torch.cuda.set_device(0)


def test_torch_accelerator_answers_for_the_target():
    before = torch.accelerator.current_accelerator()
    with opforge.target("sm_90"):
        assert torch.accelerator.is_available()
        assert torch.accelerator.device_count() == 1
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
        assert torch.accelerator.current_accelerator(check_available=True).type == "cuda"
        assert torch.accelerator.current_device_index() == 0
        assert torch.bfloat16 in torch.accelerator.get_device_capability()["supported_dtypes"]
        assert not torch.accelerator.current_stream().is_capturing()
        torch.accelerator.set_device_index(0)
        torch.accelerator.synchronize()
        with torch.accelerator.device_index(0):
            assert torch.accelerator.current_device_index() == 0
    assert torch.accelerator.current_accelerator() == before


def held_from_before(device_index=torch.accelerator.device_index):
    with device_index(0):
        return True


def test_a_device_index_that_was_imported_before_answers_for_the_target():
    with opforge.target("sm_90"):
        assert held_from_before()


def test_tritons_backend_is_active_for_the_target():
    driver = triton.backends.backends["nvidia"].driver
    before = driver.is_active()
    with opforge.target("sm_90"):
        assert driver.is_active()
        assert torch.utils._triton.has_triton()
        assert [b.driver for b in triton.backends.backends.values() if b.driver.is_active()] == [
            driver
        ]
        assert _compat.driver.has_driver() is before
    assert driver.is_active() is before


def test_a_compiled_function_is_compiled_again_for_another_target():
    def host(x):
        properties = torch.cuda.get_device_properties(0)
        return x + properties.major * 1000 + properties.multi_processor_count

    counter = CompileCounter()
    compiled = torch.compile(host, backend=counter, fullgraph=True)
    answers = {"sm_90": 9132, "sm_80": 8108, "sm_87": 8128}
    for arch in (*answers, *answers):
        with opforge.target(arch):
            assert compiled(torch.zeros(1)) == answers[arch]
    assert counter.frame_count == len(answers)

    def under(arch):
        with opforge.target(arch):
            return compiled(torch.zeros(1))

    with opforge.target("sm_90"):
        assert in_a_thread(lambda: under("sm_80")) == answers["sm_80"]
        assert compiled(torch.zeros(1)) == answers["sm_90"]
    assert counter.frame_count == len(answers)


FIRST_COMPILE = """
import sys, torch, opforge
before = "torch._dynamo" in sys.modules

def host(x):
    return x + torch.cuda.get_device_capability()[0]

for arch in ("sm_90", "sm_80"):
    with opforge.target(arch):
        print(int(torch.compile(host, backend="eager", fullgraph=True)(torch.zeros(1))))
print(before)
"""


def test_dynamo_may_be_imported_first_under_a_target():
    """Its tables of torch's functions must not hold what stands for them."""
    printed = run_python(FIRST_COMPILE, **TORCH_ALONE)
    assert printed.split() == ["9", "8", "False"]


def test_properties_of_the_device_are_those_of_a_board_of_that_kind():
    with opforge.target("sm_80"):
        properties = torch.cuda.get_device_properties(0)
        assert torch.cuda.get_device_properties("cuda") == properties
    assert (properties.major, properties.minor) == (8, 0)
    assert properties.name == "NVIDIA A100"
    assert properties.multi_processor_count == 108
    assert properties.warp_size == 32
    assert properties.shared_memory_per_block_optin == 166912
    assert properties.L2_cache_size == 40 << 20
    assert properties.total_memory == 80 << 30
    assert properties.max_threads_per_multi_processor == 2048


def test_a_device_context_of_a_fake_tensor_can_be_entered():
    with opforge.target("sm_90"), FakeTensorMode():
        x = torch.empty(4, device="cuda")
        with torch.cuda.device(x.device), torch.cuda.device_of(x):
            assert (x + 1).device == torch.device("cuda", 0)


@no_gpu
def test_everything_is_as_before_afterwards():
    names = ["current_device", "get_device_capability", "get_device_properties", "device_count"]
    before = {name: getattr(torch.cuda, name) for name in names}
    active = triton.runtime.driver._active
    with opforge.target("sm_90"):
        assert torch.cuda.device_count() == 1
    assert {name: getattr(torch.cuda, name) for name in names} == before
    assert triton.runtime.driver._active is active
    assert torch.cuda.device_count() == 0
    with pytest.raises(RuntimeError, match="0 active drivers"):
        current_target()


def test_a_driver_that_was_set_before_is_active_again():
    class Mine:
        def get_current_target(self):
            return GPUTarget("cuda", 70, 32)

    before = triton.runtime.driver._active
    triton.runtime.driver.set_active(Mine())
    try:
        with opforge.target("sm_90"):
            assert current_target().arch == 90
        assert current_target().arch == 70
        assert isinstance(triton.runtime.driver.active, Mine)
    finally:
        triton.runtime.driver._active = before


def test_a_trace_inside_of_a_target_keeps_it(op_name):
    seen = []

    @opforge.op(op_name())
    def op(x: Tensor) -> Tensor:
        seen.append((torch.cuda.get_device_capability(), current_target().arch))
        out = torch.empty_like(x)
        double[(8,)](x, out, x.numel(), BLOCK=128)
        return out

    with opforge.target("sm_100"), FakeTensorMode():
        op(torch.empty(8, 128, device="cuda"))
    assert set(seen) == {((10, 0), 100)}


@no_gpu
def test_a_trace_without_a_target_is_one_for_the_default(op_name):
    seen = []

    @opforge.op(op_name())
    def op(x: Tensor) -> Tensor:
        seen.append(torch.cuda.get_device_capability())
        out = torch.empty_like(x)
        double[(8,)](x, out, x.numel(), BLOCK=128)
        return out

    with FakeTensorMode():
        op(torch.empty(8, 128))
    assert seen == [(9, 0)]
    assert torch.cuda.device_count() == 0


def in_a_thread(ask):
    found = []

    def run():
        try:
            found.append(ask())
        except RuntimeError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    return found[0]


@no_gpu
def test_other_threads_are_unaffected():
    accelerator = torch.accelerator.current_accelerator()
    with opforge.target("sm_90"):
        assert in_a_thread(torch.cuda.device_count) == 0
        assert in_a_thread(torch.accelerator.current_accelerator) == accelerator
        assert "0 active drivers" in str(in_a_thread(current_target))
        refused = in_a_thread(lambda: triton.runtime.driver.active.utils)
        assert "0 active drivers" in str(refused)
        assert current_target().arch == 90


@no_gpu
def test_targets_of_threads_that_end_in_another_order_leave_nothing():
    entered, leave = threading.Event(), threading.Event()

    def hold():
        with opforge.target("sm_80"):
            entered.set()
            leave.wait(60)

    before = torch.cuda.get_device_capability
    thread = threading.Thread(target=hold)
    with opforge.target("sm_90"):
        thread.start()
        entered.wait(60)
    with pytest.raises(RuntimeError, match="0 active drivers"):
        current_target()
    leave.set()
    thread.join(60)
    assert torch.cuda.get_device_capability is before
    assert triton.runtime.driver._active is None


@no_gpu
@pytest.mark.parametrize("kind", ["cpu", "meta"])
def test_launching_under_a_target_says_that_a_gpu_is_needed(kind):
    x = torch.ones(8, device=kind)
    with (
        opforge.target("sm_90"),
        pytest.raises(RuntimeError, match="needs a GPU; this thread traces for sm_90 without one"),
    ):
        double[(1,)](x, x, 8, BLOCK=8)


@no_gpu
def test_an_op_called_under_a_target_says_that_a_gpu_is_needed(op_name):
    name = op_name()

    @opforge.op(name)
    def op(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        fill[(1,)](out, 8, 1.0, BLOCK=8)
        return out

    with opforge.target("sm_90"), pytest.raises(NeedsGpu, match="pass CUDA tensors") as caught:
        op(torch.ones(8))
    assert name in str(caught.value)


def used(x):
    y = torch.zeros_like(x).copy_(x)
    y[0] = x[1]
    y[:, 1] = 3.0
    indexed = (x[0], x[1:, ::2], x[..., None], x[:, 0], *x.chunk(2), *x.split(2), *x.unbind(0))
    return y, x.t().contiguous(), x.clone(), x.to(torch.float16), *indexed


def test_fake_cuda_tensors_can_be_used():
    with opforge.target("sm_90"), FakeTensorMode():
        found = used(torch.empty(4, 8, device="cuda"))
        assert {t.device for t in found} == {torch.device("cuda", 0)}
    expected = used(torch.empty(4, 8))
    assert [(t.shape, t.dtype) for t in found] == [(t.shape, t.dtype) for t in expected]
