"""What host code asks of a GPU stays a question of the library."""

import pytest
import torch
import triton
from torch import Tensor

from opforge import native
from opforge.errors import CannotTrace
from opforge.native.ir.cases import Launch
from opforge.native.ir.device_attributes import MAJOR, MINOR
from opforge.native.ir.expr import evaluate
from opforge.native.tracing import traced_gpu
from support.native.traced_kernels import block, take
from support.native.traced_oracle import Body

X = {"x": native.tensor("n", dtype="fp32")}


def built(fn, archs=(90,)):
    (found,) = Body(fn, X, archs=archs).built
    return found


def launches(found):
    return [s for p in found.case.paths for s in p.steps if isinstance(s, Launch)]


@pytest.mark.parametrize(
    ("ask", "variable"),
    [
        (lambda x: torch.cuda.get_device_properties(x.device).multi_processor_count,
         "device.multi_processor_count"),
        (lambda _: torch.cuda.get_device_properties(0).multi_processor_count,
         "device.multi_processor_count"),
        (lambda _: triton.runtime.driver.active.utils.get_device_properties(0)[
            "multiprocessor_count"], "device.multi_processor_count"),
        (lambda _: triton.runtime.driver.active.utils.get_device_properties(
            torch.cuda.current_device())["max_shared_mem"],
         "device.shared_memory_per_block_optin"),
        (lambda _: torch.cuda.get_device_properties().L2_cache_size, "device.l2_cache_size"),
    ],
)  # fmt: skip
def test_properties_become_variables(ask, variable):
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        block[(ask(x),)](x, out, 1, BLOCK=16)
        return out

    (launch,) = launches(built(body))
    assert str(launch.grid[0]) == variable


def test_a_decision_on_a_property_becomes_a_guard():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        shared = torch.cuda.get_device_properties(0).shared_memory_per_block_optin
        take[(1,)](x, out, A=2 if shared > 166000 else 1)
        return out

    found = built(body)
    assert sorted(str(p.guards[0].condition) for p in found.case.paths) == [
        "166000 < device.shared_memory_per_block_optin",
        "device.shared_memory_per_block_optin <= 166000",
    ]


def test_all_capabilities_that_are_built_for_are_traced():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        major, minor = torch.cuda.get_device_capability(x.device)
        take[(1,)](x, out, A=int(major * 10 + minor))
        return out

    found = built(body, archs=(80, 86, 90, 120))
    reached = {dict(r.constants)["A"]: archs for r, archs in found.requests.values()}
    assert reached == {80: (80,), 86: (86,), 90: (90,), 120: (120,)}


def test_no_capability_that_is_not_built_for_is_traced():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        if torch.cuda.get_device_capability() == (8, 9):
            raise RuntimeError("not reached")
        take[(1,)](x, out)
        return out

    found = built(body, archs=(80, 90))
    assert [p.refused for p in found.case.paths] == [""]
    target = triton.runtime.driver

    def by_target(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        take[(1,)](x, out, A=target.active.get_current_target().backend)
        return out

    assert launches(built(by_target))[0].constants[-2] == ("A", "'cuda'")


@pytest.mark.parametrize("name", ["name", "total_memory"])
def test_gpu_properties_that_a_library_cannot_read_are_refused(name):
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        if "H100" in str(getattr(torch.cuda.get_device_properties(0), name)):
            take[(1,)](x, out)
        return out

    with pytest.raises(CannotTrace, match=f"the GPU's {name}"):
        built(body)


def test_the_condition_that_a_device_is_one_of_those_built_for():
    condition = traced_gpu.is_one_of((80, 90))
    for arch, found in [(80, 1), (90, 1), (86, 0), (100, 0)]:
        values = {MAJOR: arch // 10, MINOR: arch % 10}
        assert evaluate(condition, values) == found
