"""opforge: write an op once; it runs in eager, autograd, torch.compile and torch.export."""

from . import magi
from .check import CheckReport, check
from .compiler import checkpoint_policy, piecewise
from .errors import OpforgeError, OpforgeWarning
from .model import Discovery, OpInfo
from .op import explain, info, is_op, op, unregister
from .packaging import Package, package
from .reading import find_kernels
from .target import target

__version__ = "0.1.0"

__all__ = [
    "CheckReport",
    "Discovery",
    "OpInfo",
    "OpforgeError",
    "OpforgeWarning",
    "Package",
    "__version__",
    "check",
    "checkpoint_policy",
    "explain",
    "find_kernels",
    "info",
    "is_op",
    "magi",
    "op",
    "package",
    "piecewise",
    "target",
    "unregister",
]
