"""Recorded kernels are found again, in packages that do odd things when they are imported."""

import sys
import textwrap

import pytest

from opforge.errors import KernelChanged, KernelNotFound
from opforge.serving.find import find_function


@pytest.fixture
def package(tmp_path, monkeypatch):
    """`odd` puts a folder of its own on the path, and imports a module from there."""
    files = {
        "odd/__init__.py": """
            import sys
            from pathlib import Path
            sys.path.append(str(Path(__file__).parent / "vendors"))
            """,
        "odd/vendors/__init__.py": "",
        "odd/vendors/oddhopper/__init__.py": "",
        "odd/vendors/oddhopper/mm.py": """
            import triton

            @triton.jit
            def kernel(x_ptr):
                pass

            class Wrapper:
                fn = kernel

            wrapped = Wrapper()
            """,
        "odd/broken.py": "raise AssertionError('no GPU')",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "odd"
    for name in [name for name in sys.modules if name.startswith("odd")]:
        del sys.modules[name]


def test_a_package_that_extends_the_path_is_imported_first(package):
    file = package / "vendors/oddhopper/mm.py"
    with pytest.raises(KernelChanged, match="has been edited") as caught:
        find_function("oddhopper.mm:wrapped", "another source", f"{file}:5")
    assert "wrapped is not the kernel that was recorded" in str(caught.value)


def test_a_package_that_fails_is_told(package):
    with pytest.raises(KernelNotFound) as caught:
        find_function("odd.broken:kernel", "", f"{package}/broken.py:1")
    assert "found: AssertionError: no GPU" in str(caught.value)
    assert "odd.broken:kernel was recorded, but cannot be imported" in str(caught.value)


def test_a_module_that_is_not_there(package):
    with pytest.raises(KernelNotFound, match="No module named 'nowhere'"):
        find_function("nowhere.at:all", "", "/nowhere/at.py:1")
