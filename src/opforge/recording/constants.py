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
from collections.abc import Callable, Mapping
from typing import Any

from .. import _compat
from ..records import shown


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


def encode_named(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Values by name; raises `CannotRecord` with the name."""
    return tuple((name, _encode_at(name, value)) for name, value in values.items())


def _encode_at(name: str, value: Any) -> Any:
    try:
        return encode(value)
    except CannotRecord as error:
        raise CannotRecord(f"{name} is {error}") from None


def _triton(value: Any) -> Any:
    language = sys.modules["triton.language"]
    if isinstance(value, language.constexpr):
        return encode(value.value)
    if type(value) is language.dtype:
        return {"dtype": str(value)}
    if hasattr(value, "cache_key") and hasattr(value, "fn"):
        try:
            return {"function": name_of(value.fn), "source": _compat.kernel_hash.digest(value)}
        except _compat.kernel_hash.Unknown as error:
            raise CannotRecord(f"the function {value.fn.__qualname__}: {error}") from None
    kind = type(value)
    raise CannotRecord(f"a {kind.__module__}.{kind.__qualname__}, which JSON cannot hold")


def name_of(function: Any) -> str:
    """`module:qualified.name` of a function; of one in the main script, with its file."""
    module = function.__module__
    if module in {"__main__", "__mp_main__"}:
        # Under `python -m` it has a name.
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        file = function.__code__.co_filename
        module = file if spec is None or spec.origin != file else spec.name
    return f"{module}:{function.__qualname__}"


def show(content: Any) -> str:
    """Encoded JSON as a person writes the value."""
    if not isinstance(content, dict):
        return repr(content)
    ((kind, value), *_) = content.items() or [("", content)]
    if kind == "tuple" and isinstance(value, list):
        items = [show(item) for item in value]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    prefix = {"dtype": "tl.", "torch": "torch."}.get(kind, "")
    return f"{prefix}{value}"


def decode(content: Any, find: Callable[[str, str], Any]) -> Any:
    """The value again; `find(name, source)` finds a jitted function. Raises `CannotRecord`."""
    if not isinstance(content, dict):
        return content
    if len(content) <= 2 and isinstance(content.get("function"), str):
        return find(content["function"], str(content.get("source")))
    ((kind, value), *rest) = content.items() or [("", None)]
    if not rest and kind == "tuple" and isinstance(value, list):
        return tuple(decode(item, find) for item in value)
    if not rest and kind == "float" and value in {"inf", "-inf", "nan"}:
        return float(value)
    if not rest and kind == "dtype" and value in _dtype_names():
        import triton.language

        return triton.language.dtype(value)
    if not rest and kind == "torch" and isinstance(value, str):
        import torch

        found = getattr(torch, value, None)
        if isinstance(found, torch.dtype):
            return found
    raise CannotRecord(f"{shown(content)}, which is not a constant")


def _dtype_names() -> frozenset[str]:
    import triton.language

    made = vars(triton.language).values()
    return frozenset(str(one) for one in made if type(one) is triton.language.dtype)
