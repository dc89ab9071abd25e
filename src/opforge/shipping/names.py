"""Names that a wheel's package can have."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path

from ..errors import BadLibraryName

# Packages that a wheel of that name would overwrite, or hide, as pip compares names.
_TAKEN = {
    "jax": "JAX", "jaxlib": "JAX", "kernels": "HuggingFace's kernels", "numpy": "NumPy",
    "opforge": "opforge", "pip": "pip", "setuptools": "setuptools", "torch": "PyTorch",
    "triton": "Triton", "tvm-ffi": "tvm-ffi", "wheel": "wheel",
}  # fmt: skip


def check_package_name(name: str, *, fix: str, origin: str = "") -> None:
    """Raise `BadLibraryName` for a name that Python cannot import, or that imports another.

    `origin` says where a name comes from that nobody gave.
    """
    why = _why_not(name)
    if why:
        what = f"a Python package cannot be named {name}{origin}: {why}"
        raise BadLibraryName(what, fix=fix)


def _why_not(name: str) -> str:
    taken = _TAKEN.get(re.sub("[-_.]+", "-", name).lower())
    if taken is not None:
        return f"it would overwrite or hide the package of {taken}"
    if name in sys.stdlib_module_names:
        return "it would hide a module of Python's standard library"
    if keyword.iskeyword(name):
        return "that is a keyword of Python"
    if not (name.isidentifier() and name.isascii()):
        return "a name has letters, digits and underscores, and a letter first"
    return ""


def package_name(folder: Path, given: str | None) -> str:
    """Of served kernels: the name that was asked for, or the folder's."""
    name = given or folder.resolve().name.replace("-", "_")
    origin = "" if given else ", after its folder"
    check_package_name(name, fix="choose another one: --name NAME", origin=origin)
    return name
