"""Constants of a launch in the program that serves it: a launch passes what is imported already."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from .. import _compat


def find_loaded(name: str, source: str | None) -> Any:
    """What `module:qualified.name` is here; a jitted function only if it has the source."""
    home, _, path = name.rpartition(":")
    for module in _modules(home):
        found: Any = module
        for part in path.split("."):
            found = getattr(found, part, None)
        if source is None and found is not None:
            return found
        kernel = _compat.kernels.innermost(found)
        if (
            _compat.compiled.is_jitted(kernel)
            and _compat.kernel_hash.hash_or_unique(kernel).digest == source
        ):
            return kernel
    from .find import find_constant

    return find_constant(name, source)


def _modules(home: str) -> Iterator[ModuleType]:
    """The module of a name, or those of a script's file: the program that runs it, first."""
    if not home.endswith(".py"):
        yield from filter(None, [sys.modules.get(home)])
        return
    mains = [sys.modules[name] for name in ("__main__", "__mp_main__") if name in sys.modules]
    for module in [*mains, *sys.modules.values()]:
        if getattr(module, "__file__", None) == home:
            yield module
