"""Architectures as values."""

import pytest

from opforge.arch import CUDA, HIP, Arch

GFX90A, GFX942, GFX1100 = (Arch(HIP, number) for number in (0x90A, 0x942, 0x1100))


@pytest.mark.parametrize(
    ("name", "arch", "vendor", "warp_size", "capability"),
    [
        ("sm_75", Arch(CUDA, 75), 0, 32, (7, 5)),
        ("sm_90", Arch(CUDA, 90), 0, 32, (9, 0)),
        ("sm_120", Arch(CUDA, 120), 0, 32, (12, 0)),
        ("gfx90a", GFX90A, 1, 64, (9, 0)),
        ("gfx942", GFX942, 1, 64, (9, 4)),
        ("gfx1100", GFX1100, 1, 32, (11, 0)),
        ("gfx1201", Arch(HIP, 0x1201), 1, 32, (12, 0)),
    ],
)
def test_a_name_tells_all_of_an_architecture(name, arch, vendor, warp_size, capability):
    assert Arch.named(name) == arch
    assert (str(arch), f"{arch}") == (name, name)
    assert (arch.vendor, arch.warp_size, arch.capability) == (vendor, warp_size, capability)


@pytest.mark.parametrize("name", ["", "90", "sm_9", "sm_90a", "sm_09", "gfx", "gfx94", "GFX942"])
def test_what_is_not_a_name_is_refused(name):
    with pytest.raises(ValueError, match="must look like 'sm_90' or 'gfx942', got") as caught:
        Arch.named(name)
    assert repr(name) in str(caught.value)


def test_images_for_hopper_and_later_run_on_nothing_else():
    names = ["sm_89", "sm_90", "sm_120", "gfx90a"]
    found = [Arch.named(name) for name in names]
    assert [arch.built_name for arch in found] == ["sm_89", "sm_90a", "sm_120a", "gfx90a"]
    assert [arch.is_hopper_or_later for arch in found] == [False, True, True, False]
