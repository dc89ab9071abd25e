"""Built libraries as torch operators; needs neither Triton nor the operators' source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import hand_on

if TYPE_CHECKING:
    from .adapter import backend
    from .library import Loaded, LoadedOp, load

__all__ = ["Loaded", "LoadedOp", "backend", "load"]

__getattr__, __dir__ = hand_on(
    __name__,
    {"library": ("Loaded", "LoadedOp", "load"), "adapter": ("backend",)},
)
