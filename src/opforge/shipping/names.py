"""Names that a wheel's package can have."""

from __future__ import annotations

import keyword
import sys
from pathlib import Path

from ..errors import BadLibraryName

# Packages that a wheel of that name would overwrite, or hide.
_TAKEN = frozenset({"jax", "jaxlib", "kernels", "numpy", "opforge", "torch", "triton", "tvm_ffi"})


def check_package_name(name: str, *, fix: str) -> None:
    """Raise `BadLibraryName` for a name that Python cannot import, or that imports another."""
    taken = name in _TAKEN or name in sys.stdlib_module_names
    if not taken and name.isidentifier() and name.isascii() and not keyword.iskeyword(name):
        return
    raise BadLibraryName(
        f"a Python package cannot be named {name}",
        found="another package has that name" if taken else "Python could not import it",
        fix=fix,
    )


def package_name(folder: Path, given: str | None) -> str:
    """Of served kernels: the name that was asked for, or the folder's."""
    name = given or folder.resolve().name.replace("-", "_")
    check_package_name(name, fix="give another one with --name")
    return name
