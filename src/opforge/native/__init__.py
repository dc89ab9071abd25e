"""From operators to a C library: declare what callers may pass, then build."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import hand_on

if TYPE_CHECKING:
    from .build import Result, build, compile_plan
    from .frontend.declaration import choice, optional, scalar, tensor
    from .frontend.declare import declare
    from .frontend.implementations import implementations
    from .ir.program import Plan
    from .library.ctypes_ops import NativeLibrary, open  # noqa: A004 - native.open
    from .plan import plan

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

# Workers import modules from here without torch.
__getattr__, __dir__ = hand_on(
    __name__,
    {
        "build": ("Result", "build", "compile_plan"),
        "frontend.declare": ("declare",),
        "frontend.implementations": ("implementations",),
        "library.ctypes_ops": ("NativeLibrary", "open"),
        "ir.program": ("Plan",),
        "plan": ("plan",),
        "frontend.declaration": ("choice", "optional", "scalar", "tensor"),
    },
    namesakes=("build", "plan"),
)
