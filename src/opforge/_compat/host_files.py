"""Tells host code from torch, Triton, opforge and the standard library, by its file."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

import torch
import triton

from .kernels import instance_dict


def _torch_folders() -> list[Path]:
    """Those of torch, and of sympy, in which it computes sizes; importing that takes 0.4 s."""
    sympy = importlib.util.find_spec("sympy")
    found = [torch.__file__, None if sympy is None else sympy.origin]
    return [Path(file).parent for file in found if file is not None]


_LEAVES = tuple(
    str(folder) + os.sep
    for folder in (*_torch_folders(), Path(triton.__file__).parent, Path(__file__).parents[1])
)
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def is_leaf_file(file: str) -> bool:
    """Whether a file belongs to torch, Triton, opforge or the standard library."""
    return file.startswith(_LEAVES) or is_stdlib(file)


def is_stdlib(file: str) -> bool:
    return file.startswith("<frozen") or (
        file.startswith(_STDLIB) and not any(part in file for part in _INSTALLED)
    )


def host_line(frame: types.FrameType) -> str:
    """`file:line` of the host code that calls, be it through the standard library; or empty."""
    now: types.FrameType | None = frame
    while now is not None and is_stdlib(now.f_code.co_filename):
        now = now.f_back
    if now is None or is_leaf_file(now.f_code.co_filename) or _is_unrelated(now):
        return ""
    return f"{now.f_code.co_filename}:{now.f_lineno}"


def _is_unrelated(frame: types.FrameType) -> bool:
    """Whether code belongs to an installed package that has nothing to do with torch: pytest's."""
    if not any(part in frame.f_code.co_filename for part in _INSTALLED):
        return False
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return not _uses_torch(package, len(sys.modules))


@functools.lru_cache(maxsize=64)
def _uses_torch(package: str, _loaded: int) -> bool:
    modules = [m for n, m in [*sys.modules.items()] if n.partition(".")[0] == package]
    return any(name in instance_dict(m) for m in modules for name in ("torch", "triton"))


def is_leaf_module(module: Any) -> bool:
    file = instance_dict(module).get("__file__") if module is not None else None
    # What is made by hand, as in a notebook, has no file.
    name = instance_dict(module).get("__name__", "") if module is not None else ""
    if isinstance(file, str):
        return is_leaf_file(file)
    return name.partition(".")[0] in sys.stdlib_module_names and name != "__main__"
