"""Triton's driver in a process that is served: torch answers, and nothing compiles C."""

import pytest
import torch
from torch._inductor.runtime import triton_helpers
from torch.utils import _triton as torch_triton
from triton.backends import backends
from triton.runtime import driver

from opforge._compat import lazy_driver, patches


@pytest.fixture
def served():
    scope = patches.PatchScope(lazy_driver.replacements)
    with scope:
        yield driver.active


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that torch knows, and whose driver Triton cannot make."""

    def refuse(self):
        raise AssertionError("Triton's driver was made")

    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(backends["nvidia"].driver, "__init__", refuse)


def test_torch_answers_for_the_gpu(gpu, served):
    assert (served.get_current_target().backend, served.get_current_target().arch) == ("cuda", 90)
    assert served.get_current_device() == 1
    assert served.get_device_capability(0) == (9, 0)
    assert served.get_device_interface() is torch.cuda
    assert served.get_active_torch_device() == torch.device("cuda", 1)


def test_inductor_takes_it_for_tritons_own(gpu, served):
    triton_helpers.set_driver_to_gpu()
    assert driver.active is served
    assert torch_triton.triton_backend.__wrapped__().target.arch == 90


def test_what_torch_does_not_know_is_tritons(gpu, served):
    with pytest.raises(AssertionError, match="Triton's driver was made"):
        served.launcher_cls  # noqa: B018


def test_without_a_gpu_it_is_as_without_opforge(served):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match="active drivers"):
        served.get_current_target()


def test_a_driver_that_is_there_is_asked(monkeypatch):
    class Made:
        def get_current_target(self):
            return "its own"

    monkeypatch.setattr(driver, "_active", Made())
    with patches.PatchScope(lazy_driver.replacements):
        assert driver.active.get_current_target() == "its own"
    assert isinstance(driver._active, Made)
