"""From operators to a C library: declare what callers may pass, then build."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import hand_on

if TYPE_CHECKING:
    from .build import Plan, Result, build, compile_plan, plan
    from .declare import declare
    from .implementations import implementations
    from .opened import NativeLibrary, open  # noqa: A004 - native.open
    from .specs import choice, optional, scalar, tensor

__all__ = [
    "NativeLibrary",
    "Plan",
    "Result",
    "build",
    "choice",
    "compile_plan",
    "declare",
    "implementations",
    "open",
    "optional",
    "plan",
    "scalar",
    "tensor",
]

# Workers import modules from here, and need no torch.
__getattr__, __dir__ = hand_on(
    __name__,
    {
        "build": ("Plan", "Result", "build", "compile_plan", "plan"),
        "declare": ("declare",),
        "implementations": ("implementations",),
        "opened": ("NativeLibrary", "open"),
        "specs": ("choice", "optional", "scalar", "tensor"),
    },
    namesakes=("build", "declare", "implementations"),
)
