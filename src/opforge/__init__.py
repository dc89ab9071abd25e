"""opforge: turn Python functions into PyTorch operators and C libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._lazy import hand_on

if TYPE_CHECKING:
    from . import errors, magi, native
    from .aoti_package import Package, package
    from .check import CheckReport, check
    from .compiler import checkpoint_policy, piecewise
    from .errors import OpforgeError, OpforgeWarning
    from .gpu_target import target
    from .loading import Loaded, backend, load
    from .model import Discovery, OpInfo
    from .op import explain, find_kernels, info, is_op, op, unregister
    from .recording.recorder import record
    from .serving.report import Served
    from .serving.serve import serve, served
    from .tuning.choose import use_tuning

__version__ = "0.1.0"

__all__ = [
    "CheckReport",
    "Discovery",
    "Loaded",
    "OpInfo",
    "OpforgeError",
    "OpforgeWarning",
    "Package",
    "Served",
    "__version__",
    "backend",
    "check",
    "checkpoint_policy",
    "errors",
    "explain",
    "find_kernels",
    "info",
    "is_op",
    "load",
    "magi",
    "native",
    "op",
    "package",
    "piecewise",
    "record",
    "serve",
    "served",
    "target",
    "unregister",
    "use_tuning",
]

# Importing opforge imports neither torch nor Triton: commands that find nothing to do, and the
# processes that compile kernels, need neither.
__getattr__, __dir__ = hand_on(
    __name__,
    {
        "check": ("CheckReport", "check"),
        "compiler": ("checkpoint_policy", "piecewise"),
        "errors": ("OpforgeError", "OpforgeWarning"),
        "loading": ("Loaded", "backend", "load"),
        "model": ("Discovery", "OpInfo"),
        "op": ("explain", "find_kernels", "info", "is_op", "op", "unregister"),
        "aoti_package": ("Package", "package"),
        "gpu_target": ("target",),
        "recording.recorder": ("record",),
        "serving.report": ("Served",),
        "serving.serve": ("serve", "served"),
        "tuning.choose": ("use_tuning",),
    },
    modules=("errors", "magi", "native"),
    namesakes=("check", "explain", "op"),
)
