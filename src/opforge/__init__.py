"""opforge: write an op once; it runs in eager, autograd, torch.compile and torch.export."""

from . import magi
from .errors import OpforgeError, OpforgeWarning
from .model import OpInfo
from .op import explain, info, is_op, op, unregister

__version__ = "0.1.0"

__all__ = [
    "OpInfo",
    "OpforgeError",
    "OpforgeWarning",
    "__version__",
    "explain",
    "info",
    "is_op",
    "magi",
    "op",
    "unregister",
]
