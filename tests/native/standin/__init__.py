"""A CUDA driver on host memory, and calls of native libraries from Python."""

from .driver import Launched, StandIn, load_standin
from .interpreter import Interpreter
from .library import NativeLibrary, OpforgeTensor, Refused, build
from .remote import serving

__all__ = [
    "Interpreter",
    "Launched",
    "NativeLibrary",
    "OpforgeTensor",
    "Refused",
    "StandIn",
    "build",
    "load_standin",
    "serving",
]
