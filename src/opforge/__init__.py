"""opforge: write an op once; it runs in eager, autograd, torch.compile and torch.export."""

from . import magi
from .analysis.kernels import find_kernels
from .errors import OpforgeError, OpforgeWarning
from .model import Discovery, OpInfo
from .op import explain, info, is_op, op, unregister
from .target import target

__version__ = "0.1.0"

__all__ = [
    "Discovery",
    "OpInfo",
    "OpforgeError",
    "OpforgeWarning",
    "__version__",
    "explain",
    "find_kernels",
    "info",
    "is_op",
    "magi",
    "op",
    "target",
    "unregister",
]
