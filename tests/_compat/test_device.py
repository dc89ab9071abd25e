"""The architectures of this machine's GPUs, as torch for either vendor tells them."""

import types

import pytest
import torch

from opforge._compat.device import device_arch
from opforge.arch import Arch


@pytest.mark.parametrize(
    ("hip", "name", "expected"),
    [
        (None, "NVIDIA H200", "sm_90"),
        ("7.1.0", "gfx90a:sramecc+:xnack-", "gfx90a"),
        ("7.1.0", "gfx1100", "gfx1100"),
    ],
)
def test_the_vendor_is_that_of_torchs_build(monkeypatch, hip, name, expected):
    asked = []

    def properties(index=None):
        asked.append(index)
        return types.SimpleNamespace(gcnArchName=name)

    def capability(index=None):
        asked.append(index)
        return 9, 0

    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", capability)
    assert device_arch(3) == Arch.named(expected)
    assert device_arch() == Arch.named(expected)
    assert asked == [3, None]
