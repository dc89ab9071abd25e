"""Architectures by name."""

import pytest

from opforge._compat import compiling
from opforge.arch import Arch
from opforge.arch_names import check_arch, parse_arch, parse_archs
from opforge.errors import BadOption
from support.archs import sm


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("sm_80", "sm_80"),
        ("80", "sm_80"),
        (80, "sm_80"),
        ("sm_90a", "sm_90"),
        ("SM_90", "sm_90"),
        (" sm90 ", "sm_90"),
        ("cuda:86", "sm_86"),
        ("compute_89", "sm_89"),
        ("sm_100a", "sm_100"),
        ("GFX90A", "gfx90a"),
        ("hip:gfx950", "gfx950"),
        ("rocm:gfx1100", "gfx1100"),
        ("gfx942:sramecc+:xnack-", "gfx942"),
    ],
)
def test_an_architecture_is_read(text, name):
    assert parse_arch(text) == Arch.named(name)
    assert parse_archs(text) == (Arch.named(name),)


@pytest.mark.parametrize("text", ["xpu", "intel", "XPU:0", "bmg", "pvc"])
def test_intel_is_refused_by_name_with_the_reason(text):
    said = f"{text!r} is an Intel GPU, and Triton has no compiler for these"
    with pytest.raises(BadOption, match=said) as caught:
        parse_arch(text)
    assert "sm_90" in str(caught.value)
    assert "gfx942" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "hopper", "sm_", "sm_9", "sm_90b", "9.0", "sm_1234", "gfx", "gfx9", "gfx94z", "hip"],
)
def test_an_invalid_architecture_is_refused_with_the_valid_ones(text):
    with pytest.raises(BadOption, match="not a GPU architecture") as caught:
        parse_arch(text)
    assert "sm_80" in str(caught.value)


@pytest.mark.parametrize("text", ["sm_85", "sm_30", "999", "gfx906", "gfx1250"])
def test_an_architecture_that_triton_lacks_is_refused_with_the_available_ones(text):
    with pytest.raises(BadOption, match=r"Triton \S+ cannot compile for (sm_|gfx)") as caught:
        parse_arch(text)
    assert "sm_90" in str(caught.value)
    assert "gfx90a, gfx942, gfx950" in str(caught.value)


def test_a_form_that_does_not_exist_is_refused():
    with pytest.raises(BadOption, match="use sm_80"):
        parse_arch("sm_80a")


def test_several_are_sorted_and_kept_once():
    assert parse_archs(["sm_90", "80", "sm_90a"]) == sm(80, 90)
    both = parse_archs(["gfx942", "sm_90", "gfx90a", "sm_80"])
    assert [*map(str, both)] == ["sm_80", "sm_90", "gfx90a", "gfx942"]


def test_none_is_refused():
    with pytest.raises(BadOption, match="no GPU architecture was given"):
        parse_archs(())


def test_every_arch_that_is_listed_is_accepted():
    assert {*sm(75, 80, 86, 89, 90, 100, 120)} <= set(compiling.known_archs())
    assert [check_arch(a) for a in compiling.known_archs()] == list(compiling.known_archs())
