"""Built libraries as torch operators, without Triton and without the operators' source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import hand_on

if TYPE_CHECKING:
    from .library import Loaded, LoadedOp, load
    from .switch import backend

__all__ = ["Loaded", "LoadedOp", "backend", "load"]

__getattr__, __dir__ = hand_on(
    __name__, {"library": ("Loaded", "LoadedOp", "load"), "switch": ("backend",)}
)
