"""Constants of a launch as JSON.

1024                      1024
(16, 32)                  {"tuple": [16, 32]}
float("inf")              {"float": "inf"}
tl.float16                {"dtype": "fp16"}
torch.float16             {"torch": "float16"}
a @triton.jit function    {"function": "package.module:name", "source": "9f86d08..."}
"""

from __future__ import annotations

import math
import sys
from typing import Any


class CannotRecord(ValueError):
    """JSON cannot hold a value; the text says which and why."""


def encode(value: Any) -> Any:
    """A value as JSON; raises `CannotRecord`."""
    kind = type(value)
    if value is None or kind in {bool, int, str}:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if kind in {tuple, list}:
        return {"tuple": [encode(item) for item in value]}
    home = kind.__module__.partition(".")[0]
    if home == "triton":
        return _triton(value)
    if kind is getattr(sys.modules.get("torch"), "dtype", None):
        return {"torch": str(value).removeprefix("torch.")}
    raise CannotRecord(f"a {kind.__module__}.{kind.__qualname__}, which JSON cannot hold")


def _triton(value: Any) -> Any:
    language = sys.modules["triton.language"]
    if isinstance(value, language.constexpr):
        return encode(value.value)
    if type(value) is language.dtype:
        return {"dtype": str(value)}
    if hasattr(value, "cache_key") and hasattr(value, "fn"):
        fn = value.fn
        return {"function": f"{fn.__module__}:{fn.__qualname__}", "source": value.cache_key}
    kind = type(value)
    raise CannotRecord(f"a {kind.__module__}.{kind.__qualname__}, which JSON cannot hold")


def show(content: Any) -> str:
    """Encoded JSON as a person writes the value."""
    if not isinstance(content, dict):
        return repr(content)
    ((kind, value), *_) = content.items()
    if kind == "tuple":
        items = [show(item) for item in value]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    prefix = {"dtype": "tl.", "torch": "torch."}.get(kind, "")
    return f"{prefix}{value}"
