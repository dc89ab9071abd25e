"""From operators to a C library: declare what callers may pass, then build."""

from .declare import declare
from .specs import choice, optional, scalar, tensor

__all__ = ["choice", "declare", "optional", "scalar", "tensor"]
