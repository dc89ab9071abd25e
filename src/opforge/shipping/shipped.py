"""The files of this package's library, and its operators in torch.

`opforge wheel` copies this file into each wheel, with the constants filled in. It needs nothing but
Python, and torch for calls.
"""

from __future__ import annotations

import importlib
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIBRARY = "mylib"
MACHINE = "x86_64"
OPERATORS = "mylib::silu mylib::mul"
# Those whose backward the library carries.
DIFFERENTIABLE = "mylib::mul"

_HERE = Path(__file__).resolve().parent


def get_include() -> str:
    """The folder with the C and C++ headers."""
    return str(_HERE / "include")


def get_library() -> str:
    """The shared library, which C and C++ programs link or open."""
    return str(_HERE / "lib" / f"lib{LIBRARY}.so")


def get_cmake_dir() -> str:
    """The folder that find_package needs, for -DNAME_DIR."""
    return str(_HERE / "lib" / "cmake" / LIBRARY)


def operator(name: str) -> Callable[..., Any]:
    """The torch operator `ns::op` or `ns::op.overload`; without torch, what says so when called."""
    if _torch is None:

        def needs_torch(*_args: Any, **_kwargs: Any) -> Any:
            raise ImportError(
                f"{name} is called with torch's tensors, and torch is not installed\n"
                "  fix: pip install torch",
                name="torch",
            )

        return needs_torch
    found = _find(_torch, name)
    if found is None:
        raise ImportError(
            f"torch has no operator {name}: {_adapter()} could not define it\n"
            "  fix: import this package in a process that has no other build of it"
        )
    return found


def _find(torch: Any, name: str) -> Callable[..., Any] | None:
    space, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, space), base, None)
    return getattr(packet, overload or "default", None)


def dtype(name: str) -> Any:
    """`torch.float16` for "float16"; None without torch."""
    return None if _torch is None else getattr(_torch, name)


def _adapter() -> Path:
    return _HERE / "lib" / f"lib{LIBRARY}_torch.so"


def _load() -> Any:
    """Torch with the library's operators, or None where torch is not installed."""
    if platform.machine() != MACHINE:
        raise ImportError(
            f"{LIBRARY} was built for {MACHINE}, and this machine is {platform.machine()}\n"
            f"  fix: install a wheel whose name ends in {platform.machine()}.whl"
        )
    try:
        import torch  # noqa: PLC0415  # optional
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return None
    version = torch.__version__.split(".")
    if tuple(int(part) for part in version[:2]) < (2, 11):
        raise ImportError(
            f"{LIBRARY} needs torch 2.11 or newer, and this is torch {torch.__version__}\n"
            "  fix: pip install --upgrade torch"
        )
    if str(_adapter()) not in torch.ops.loaded_libraries:
        _refuse_defined(torch)
    try:
        torch.ops.load_library(str(_adapter()))
    except OSError as error:
        raise ImportError(
            f"{_adapter()} cannot be loaded: {error}\n"
            f"  fix: install the wheel again: pip install --force-reinstall {LIBRARY}"
        ) from error
    return torch


def _refuse_defined(torch: Any) -> None:
    """Torch keeps the first of two operators with one name, whose kernels would be called."""
    for name in OPERATORS.split():
        if _find(torch, name) is not None:
            raise ImportError(
                f"torch already has an operator {name}, of another package, of its source or of "
                f"opforge.load, and calls of {LIBRARY} would go there\n"
                "  fix: use only one of them in a process"
            )


def _add_rules(torch: Any) -> Any:
    """Torch has the adapter's kernels; fakes and gradients are of Python."""
    rules = importlib.import_module(f"{__package__}._opforge.shipping.shipped_rules")
    manifest = _HERE / "share" / LIBRARY / "manifest.json"
    return rules.register_rules(torch, manifest, OPERATORS.split(), DIFFERENTIABLE.split())


# A module that is reloaded keeps its names, as torch keeps the rules.
_is_reloaded = "_torch" in globals()
_torch = _load()
if _torch is not None and not _is_reloaded:
    _rules = _add_rules(_torch)
