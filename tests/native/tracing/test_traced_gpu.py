"""What host code asks of a GPU stays a question of the library."""

import pytest
import torch
import triton
from torch import Tensor

from opforge import native
from opforge.arch import Arch
from opforge.errors import UnsupportedBody
from opforge.native.ir.case_text import conditions, with_names
from opforge.native.ir.cases import Launch
from support.archs import SM_90, sm
from support.native.traced_kernels import block, launching, take
from support.native.traced_oracle import Body

X = {"x": native.tensor("n", dtype="fp32")}


def built(fn, archs=(SM_90,)):
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
    body = launching(lambda x, out: block[(ask(x),)](x, out, 1, BLOCK=16))
    (launch,) = launches(built(body))
    assert str(launch.grid[0]) == variable


def test_all_capabilities_that_are_built_for_are_traced():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        major, minor = torch.cuda.get_device_capability(x.device)
        take[(1,)](x, out, A=int(major * 10 + minor))
        return out

    found = built(body, archs=sm(80, 86, 90, 120))
    reached = {dict(r.constants)["A"]: archs for r, archs in found.requests.values()}
    assert reached == {80: sm(80), 86: sm(86), 90: sm(90), 120: sm(120)}


def test_no_capability_that_is_not_built_for_is_traced():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        if torch.cuda.get_device_capability() == (8, 9):
            raise RuntimeError("not reached")
        take[(1,)](x, out)
        return out

    found = built(body, archs=sm(80, 90))
    assert [p.refused for p in found.case.paths] == [""]
    target = triton.runtime.driver

    by_target = launching(
        lambda x, out: take[(1,)](x, out, A=target.active.get_current_target().backend)
    )
    assert launches(built(by_target))[0].constants[-2] == ("A", "'cuda'")


@pytest.mark.parametrize("name", ["name", "total_memory"])
def test_gpu_properties_that_a_library_cannot_read_are_refused(name):
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        if "H100" in str(getattr(torch.cuda.get_device_properties(0), name)):
            take[(1,)](x, out)
        return out

    with pytest.raises(UnsupportedBody, match=f"the GPU's {name}"):
        built(body)


GFX = tuple(map(Arch.named, ("gfx942", "gfx950", "gfx1100", "gfx1101")))


def by_archs(found):
    """By the constant that a body chose, the architectures that its kernels are for."""
    return {dict(r.constants)["A"]: [*map(str, archs)] for r, archs in found.requests.values()}


def test_a_body_asks_for_the_vendor_by_torchs_version():
    body = launching(lambda x, out: take[(1,)](x, out, A=1 if torch.version.hip else 2))
    assert by_archs(built(body, archs=sm(90))) == {2: ["sm_90"]}
    assert by_archs(built(body, archs=GFX[:1])) == {1: ["gfx942"]}
    both = built(body, archs=(*sm(80), GFX[0]))
    assert by_archs(both) == {1: ["gfx942"], 2: ["sm_80"]}
    assert [conditions(p) for p in both.case.paths] == [
        "device.vendor == NVIDIA", "device.vendor == AMD",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "shown"),
    [
        (
            "device.vendor != 0 and device.arch == 2370",
            "device.vendor != NVIDIA and device.arch == gfx942",
        ),
        (
            "4096 <= device.arch and device.major < 12",
            "gfx1000 <= device.arch and device.major < 12",
        ),
    ],
)
def test_people_are_shown_names_of_vendors_and_architectures(condition, shown):
    assert with_names(condition) == shown


def test_an_sm_90_is_not_a_gfx90a_though_both_have_capability_9_0():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        is_hopper = torch.cuda.get_device_capability() == (9, 0) and not torch.version.hip
        take[(1,)](x, out, A=7 if is_hopper else 8)
        return out

    archs = (*sm(80, 90), Arch.named("gfx90a"))
    assert by_archs(built(body, archs=archs)) == {7: ["sm_90"], 8: ["sm_80", "gfx90a"]}


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda p: p.warp_size, {64: ["gfx942", "gfx950"], 32: ["gfx1100", "gfx1101"]}),
        (
            lambda p: int(p.gcnArchName.partition(":")[0][3:]),
            {942: ["gfx942"], 950: ["gfx950"], 1100: ["gfx1100"], 1101: ["gfx1101"]},
        ),
        (
            lambda p: p.major * 10 + p.minor,
            {94: ["gfx942"], 95: ["gfx950"], 110: ["gfx1100", "gfx1101"]},
        ),
    ],
)
def test_what_an_amd_gpu_tells_is_told_apart_by_its_architecture(ask, expected):
    body = launching(
        lambda x, out: take[(1,)](x, out, A=ask(torch.cuda.get_device_properties(x.device)))
    )
    assert by_archs(built(body, archs=GFX)) == expected
    with_nvidia = by_archs(built(body, archs=(*sm(80), *GFX))) if expected.get(64) else {}
    assert with_nvidia.get(32, ["sm_80"])[0] == "sm_80"


def test_the_board_of_an_amd_gpu_is_asked_without_its_architecture():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        take[(torch.cuda.get_device_properties(0).multi_processor_count,)](x, out)
        return out

    (path,) = built(body, archs=GFX).case.paths
    assert path.guards == ()
    (launch,) = path.steps[-1:]
    assert str(launch.grid[0]) == "device.multi_processor_count"
