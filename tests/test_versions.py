"""The oldest versions, where code and texts cannot import them."""

from pathlib import Path

from opforge import versions
from opforge.native.codegen.text import runtime
from opforge.versions import OLDEST_TORCH, OLDEST_TRITON

ROOT = Path(__file__).parent.parent


def test_the_oldest_versions_agree_with_pyproject_and_the_docs():
    required = (ROOT / "pyproject.toml").read_text()
    assert f'"torch>={OLDEST_TORCH}"' in required
    assert f'"triton>={OLDEST_TRITON};' in required
    text = (ROOT / "docs/install.md").read_text()
    assert f"torch {OLDEST_TORCH} or newer" in text
    assert f"Triton {OLDEST_TRITON} or newer" in text


def test_the_oldest_torch_agrees_with_what_libraries_and_wheels_have():
    major, minor = map(int, OLDEST_TORCH.split("."))
    target = f"#define TORCH_TARGET_VERSION 0x{major:02x}{minor:02x}{0:012x}ULL\n"
    assert target in runtime("torch")["torch_api.hpp"]
    copied = (ROOT / "src/opforge/shipping/shipped.py").read_text()
    assert f" < ({major}, {minor}):" in copied
    assert f"needs torch {OLDEST_TORCH} or newer" in copied


def test_the_range_of_tested_versions_is_told_once():
    newest = max(versions.TESTED, key=lambda release: int(release.partition(".")[2]))
    assert OLDEST_TORCH in versions.TESTED
    assert OLDEST_TRITON in versions.TESTED.values()
    major, minor = newest.split(".")
    assert f"'torch<{major}.{int(minor) + 1}'" in versions.INSTALL_TESTED
