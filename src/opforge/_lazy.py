"""Packages that import the module that defines a name when the name is first used.

Commands that need no torch, processes that compile kernels, and the first call of a loaded library
import parts of opforge, and do not pay for the rest.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .versions import is_tested


class _Namesakes(types.ModuleType):
    """A package some of whose names are also names of its modules: `opforge.check`.

    Importing a module binds it to its package under its own name; the name that the package hands
    on must win, whatever is imported first.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        own = f"{self.__name__}.{name}"
        is_submodule = isinstance(value, types.ModuleType) and value is sys.modules.get(own)
        if not (is_submodule and name in self.__dict__["_namesakes"]):
            super().__setattr__(name, value)


def hand_on(
    package: str,
    homes: Mapping[str, Iterable[str]],
    modules: Iterable[str] = (),
    namesakes: Iterable[str] = (),
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package, from the names that each module defines.

        __getattr__, __dir__ = hand_on(__name__, {"check": ("CheckReport", "check")}, ("magi",))

    `modules` are handed on themselves; `namesakes` are names that a module also has. All names of
    a module are bound together, so that code that is traced later finds each where an ordinary
    import would have put it.
    """
    home_of = {name: home for home, names in homes.items() for name in names}
    modules = frozenset(modules)
    this = sys.modules[package]

    def load(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}", name=name, obj=this
            )
        home = importlib.import_module(f"{package}.{home_of[name]}")
        for each in homes[home_of[name]]:
            # A name that is set already was replaced, by a test for example.
            this.__dict__.setdefault(each, getattr(home, each))
        return this.__dict__[name]

    def names() -> list[str]:
        public: Iterable[str] = this.__dict__.get("__all__") or {*home_of, *modules}
        return sorted(public)

    if namesakes:
        # Only there: a plain module's attributes are read faster.
        this.__dict__["_namesakes"] = frozenset(namesakes)
        this.__class__ = _Namesakes
    return load, names


def modules_and(package: str, home: str, *, asks: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose names are its modules and what one of them defines.

    On a torch or Triton that was not tested, the module `asks` is asked about each name first.
    """
    this = sys.modules[package]

    def load(name: str) -> Any:
        if not (name.startswith("_") or name == asks or is_tested()):
            importlib.import_module(f"{package}.{asks}").require(name)
        if not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}") is not None:
            return importlib.import_module(f"{package}.{name}")
        defined = vars(importlib.import_module(f"{package}.{home}"))
        if name.startswith("_") or name not in defined:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}", name=name, obj=this
            )
        for each, value in defined.items():
            if not each.startswith("_"):
                this.__dict__.setdefault(each, value)
        return this.__dict__[name]

    return load
