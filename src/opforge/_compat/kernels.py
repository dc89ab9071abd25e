"""What Triton's kernel objects are; Triton is asked only where somebody has imported it."""

from __future__ import annotations

import sys
from typing import Any


def triton_loaded() -> bool:
    """Whether Triton was imported; where it was not, there are no kernels."""
    return "triton" in sys.modules


def is_kernel(value: Any) -> bool:
    """Whether a value is a kernel of Triton's own: jitted, autotuned, heuristics, or Gluon."""
    return isinstance(value, kernel_types())


def kernel_types() -> tuple[type[Any], ...]:
    """JITFunction (Gluon's is one), Autotuner, Heuristics, and the interpreter's function."""
    if not triton_loaded():
        return ()
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    return (JITFunction, Autotuner, Heuristics, InterpretedFunction)


def innermost(kernel: Any) -> Any:
    """The jitted (or interpreted) function below autotuners and heuristics."""
    while hasattr(kernel, "fn") and not _is_base(kernel):
        kernel = kernel.fn
    return kernel


def is_interpreted(kernel: Any) -> bool:
    """Whether a kernel was made under TRITON_INTERPRET=1."""
    from triton.runtime.interpreter import InterpretedFunction

    return isinstance(innermost(kernel), InterpretedFunction)


def is_gluon(kernel: Any) -> bool:
    module = sys.modules.get("triton.experimental.gluon._runtime")
    return module is not None and isinstance(innermost(kernel), module.GluonJITFunction)


def kernel_name(kernel: Any) -> str:
    base = innermost(kernel)
    return str(getattr(getattr(base, "fn", base), "__name__", type(kernel).__name__))


def kernel_location(kernel: Any) -> str:
    """`file:line` where a kernel is defined."""
    fn = getattr(innermost(kernel), "fn", None)
    code = getattr(fn, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else "unknown"


def _is_base(kernel: Any) -> bool:
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    return isinstance(kernel, (JITFunction, InterpretedFunction))
