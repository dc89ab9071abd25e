"""What a kernel that is made inside a function has from there, as JSON.

As in `constants.py`, and:

tl.constexpr(64)              {"constexpr": 64}
triton.language               {"module": "triton.language"}
a function, a class           {"named": "package.module:name"}
a kernel that is made, too    {"made": "package.module:f.<locals>.k", "source": "9f86d08...", ...}
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .. import _compat
from .constants import CannotRecord, decode, encode, home_of, name_of
from .model import CODECS, Inside

# Finds a kernel again: its name, its source, its location, what it has from inside.
FindMade = Callable[[str, str, str, Inside], Any]


def describe(fn: Any) -> Inside | None:
    """What a build needs to make a jitted function again; None if it is not made in a function.

    Raises `CannotRecord`.
    """
    function = _compat.compiled.function_of(fn)
    if "<locals>" not in function.__qualname__:
        return None
    params = fn.params
    return Inside(
        closure=tuple((name, _encoded(name, value)) for name, value in _closure(function)),
        defaults=tuple((p.name, _encoded(p.name, p.default)) for p in params if p.has_default),
        annotations=tuple((p.name, p.annotation) for p in params if p.annotation),
        unspecialized=tuple(p.name for p in params if p.do_not_specialize),
        unaligned=tuple(p.name for p in params if p.do_not_specialize_on_alignment),
        noinline=bool(fn.noinline),
        debug=fn.debug,
        gluon=_compat.kernels.is_gluon(fn),
    )


def _closure(function: Any) -> list[tuple[str, Any]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    try:
        return [(name, cell.cell_contents) for name, cell in cells]
    except ValueError:
        raise CannotRecord("a variable of the function that makes it is not set") from None


def _encoded(name: str, value: Any) -> Any:
    try:
        return _encode(value)
    except CannotRecord as error:
        raise CannotRecord(f"it is made inside a function, and {name} there is {error}") from None


def _encode(value: Any) -> Any:
    if isinstance(value, ModuleType):
        return {"module": value.__name__}
    if isinstance(value, sys.modules["triton.language"].constexpr):
        return {"constexpr": _encode(value.value)}
    name = _name(value)
    if name:
        return {"named": name}
    inside = describe(value) if _compat.compiled.is_jitted(value) else None
    if inside is None:
        return encode(value)
    return {
        "made": name_of(_compat.compiled.function_of(value)),
        "source": _compat.kernel_hash.digest(value),
        "location": _compat.kernels.kernel_location(value),
        "inside": CODECS.of(Inside).write(inside),
    }


def _name(value: Any) -> str:
    """`package.module:name` of what stands there; empty of anything else."""
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    place: Any = sys.modules.get(str(module))
    if place is None or not isinstance(path, str):
        return ""
    found = functools.reduce(lambda one, name: getattr(one, name, None), path.split("."), place)
    home = home_of(str(module), getattr(place, "__file__", None) or "")
    return f"{home}:{path}" if found is value else ""


def restore(content: Any, find: Callable[[str, str | None], Any], made: FindMade) -> Any:
    """The value again; raises `CannotRecord`, and what `find` and `made` raise."""
    match content:
        case {"module": str(name)}:
            return importlib.import_module(name)
        case {"constexpr": value}:
            return sys.modules["triton.language"].constexpr(restore(value, find, made))
        case {"named": str(name)}:
            return find(name, None)
        case {"made": str(name), "source": str(source), "location": str(location), "inside": held}:
            return made(name, source, location, CODECS.of(Inside).read(held))
    return decode(content, find)
