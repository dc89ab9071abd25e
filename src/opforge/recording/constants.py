"""Constants of a launch as JSON, and what an autotuner chose.

1024                      1024
(16, 32)                  {"tuple": [16, 32]}
float("inf")              {"float": "inf"}
tl.float16                {"dtype": "fp16"}
torch.float16             {"torch": "float16"}
a @triton.jit function    {"function": "package.module:name", "source": "9f86d08..."}
Color.RED                 {"enum": "package.module:Color.RED", "value": 1}

A program that serves imports this module, and waits for it; of the room it needs no other.
"""

from __future__ import annotations

import enum
import functools
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .. import _compat
from ..records import shown

# Where kernels of compiled graphs are listed, in place of a module.
MODULE = "torch.compile"
LOCATION = "printed by Inductor"
# Where Inductor is handed the text of a kernel.
COMPILING = "torch._inductor.async_compile"


class CannotRecord(ValueError):
    """JSON cannot hold a value, or it is not the one any more; the text says which and why."""


def encode(value: Any) -> Any:
    """A value as JSON; raises `CannotRecord`."""
    kind = type(value)
    if value is None or kind in {bool, int, str}:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if kind in {tuple, list}:
        return {"tuple": [encode(item) for item in value]}
    if isinstance(value, enum.Enum):
        return {"enum": _enum_name(value), "value": encode(value.value)}
    if kind is getattr(sys.modules.get("torch"), "dtype", None):
        return {"torch": str(value).removeprefix("torch.")}
    language = sys.modules["triton.language"]
    if isinstance(value, language.constexpr):
        return encode(value.value)
    if kind is language.dtype:
        return {"dtype": str(value)}
    if _compat.compiled.is_jitted(value):
        try:
            return {"function": name_of(value.fn), "source": _compat.kernel_hash.digest(value)}
        except _compat.kernel_hash.NoText as error:
            raise CannotRecord(f"the function {value.fn.__qualname__}: {error}") from None
    raise CannotRecord(f"a {kind.__module__}.{kind.__qualname__}, which JSON cannot hold")


def encode_named(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Values by name; raises `CannotRecord` with the name."""
    return tuple((name, _encode_at(name, value)) for name, value in values.items())


def _encode_at(name: str, value: Any) -> Any:
    try:
        return encode(value)
    except CannotRecord as error:
        raise CannotRecord(f"{name} is {error}") from None


def _enum_name(member: enum.Enum) -> str:
    """`package.module:Color.RED`, if that is where it is."""
    kind = type(member)
    module: Any = sys.modules.get(kind.__module__)
    path = [*kind.__qualname__.split("."), member.name or ""]
    if functools.reduce(lambda one, name: getattr(one, name, None), path, module) is not member:
        raise CannotRecord(f"{member!r}, which has no name in {kind.__module__}")
    home = home_of(kind.__module__, getattr(module, "__file__", None) or "")
    return f"{home}:{'.'.join(path)}"


def name_of(function: Any) -> str:
    """`module:qualified.name` of a function; with its file where no name leads to its module."""
    home = home_of(function.__module__, function.__code__.co_filename)
    return f"{home}:{function.__qualname__}"


def home_of(module: str, file: str) -> str:
    """The name of a module, or its file where no name leads to it."""
    if module in {"__main__", "__mp_main__"}:
        # Under `python -m` it has a name.
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        return file if spec is None or spec.origin != file else str(spec.name)
    return module if _can_be_imported(module) or not Path(file).is_file() else file


@functools.cache
def _can_be_imported(module: str) -> bool:
    """Whether another process finds a module by its name.

    Not if a program has loaded it from a file, with `runpy` or under a name of its choice.
    """
    parent = module.rpartition(".")[0]
    places = getattr(sys.modules.get(parent), "__path__", None)
    if parent and (places is None or not _can_be_imported(parent)):
        return False
    return any(finder.find_spec(module, places) for finder in [*sys.meta_path])


def show(content: Any) -> str:
    """Encoded JSON as a person writes the value."""
    if not isinstance(content, dict):
        return repr(content)
    kind, value = next(iter(content.items()))
    if kind == "tuple":
        items = [show(item) for item in value]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    prefix = {"dtype": "tl.", "torch": "torch."}.get(kind, "")
    return f"{prefix}{value}"


def decode(content: Any, find: Callable[[str, str | None], Any]) -> Any:
    """The value again; raises `CannotRecord`.

    `find(name, source)` finds a jitted function, and `find(name, None)` anything else by its name.
    """
    match content:
        case {"function": str(name), "source": str(source)}:
            return find(name, source)
        case {"enum": str(name), "value": value}:
            return _member(name, value, find(name, None))
        case {"tuple": list(items)}:
            return tuple(decode(item, find) for item in items)
        case {"float": str(text)}:
            return float(text)
        case {"dtype": str(name)}:
            import triton.language

            return triton.language.dtype(name)
        case {"torch": str(name)}:
            import torch

            return getattr(torch, name)
        case {}:
            raise CannotRecord(f"{shown(content)}, which is not a constant")
    return content


def _member(name: str, value: Any, found: Any) -> Any:
    if not isinstance(found, enum.Enum):
        raise CannotRecord(f"{name}, which is not a member of an enum")
    if encode(found.value) != value:
        raise CannotRecord(f"{found!r}, which was {show(value)}")
    return found
