"""Values that kernels use as text: the same in every process, and another for another value."""

from __future__ import annotations

import enum
import functools
import os
import sys
from collections.abc import Mapping
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import triton.language as tl
from triton.runtime.jit import BoundConstexprFunction, JITCallable

PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, type(...)})
# Their functions and classes are what their versions make them.
TRITON = frozenset({"triton"})
FOREIGN = TRITON | frozenset({*sys.stdlib_module_names, "torch", "numpy"})
# Of a class: what Python notes about its definition.
_NOTED = frozenset(
    {"__module__", "__doc__", "__dict__", "__weakref__", "__qualname__", "__firstlineno__"}
    | {"__static_attributes__", "__abstractmethods__", "_abc_impl"}
    | {"__annotate__", "__annotations_cache__"}
)
_MOST = 100_000


class NoText(Exception):
    """A value that has no text of its own; `str()` says which, and of which type."""

    def __init__(self, name: str, value: Any) -> None:
        kind = type(value)
        shown = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        super().__init__(
            f"it uses {name}, a {shown}, which cannot be compared with that of another process"
        )


def is_of(value: Any, packages: frozenset[str]) -> bool:
    """Whether a module, class or function is from one of these packages."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(name).partition(".")[0] in packages


class Texts:
    """Writes values; functions are numbered by `refer`, which writes them elsewhere."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._written = 0

    def refer(self, function: Any) -> str:
        raise NotImplementedError

    def text(self, value: Any, name: str) -> str:
        """A value as text; raises `NoText` with the name."""
        kind = type(value)
        if kind in PLAIN:
            return f"{kind.__name__} {value!r}"
        if isinstance(value, JITCallable):
            return self._jitted_text(value, name)
        self._written += 1
        if self._written > _MOST:
            raise NoText(name, value)
        if id(value) in self._open:
            return f"the same as {self._open[id(value)]} around"
        self._open[id(value)] = len(self._open)
        try:
            return self._whole(value, name)
        finally:
            del self._open[id(value)]

    def _jitted_text(self, value: Any, name: str) -> str:
        if isinstance(value, BoundConstexprFunction):
            return f"{self.refer(value.__func__)} of {self.text(value.__self__, name)}"
        # Triton's own by name, as its builtins: reading `tl.sort` alone takes milliseconds.
        if is_of(value, TRITON):
            return f"{value.__module__}:{value.__qualname__}"
        return self.refer(value)

    def _whole(self, value: Any, name: str) -> str:
        kind = type(value)
        if kind is tl.constexpr:
            return f"constexpr {self.text(value.value, name)}"
        if kind is tl.dtype:
            return f"dtype {value}"
        if isinstance(value, enum.Enum):
            return f"{kind.__qualname__}.{value.name} {self.text(value.value, name)}"
        if isinstance(value, ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, type):
            return self._class(value, name)
        if isinstance(value, (tuple, list, set, frozenset, Mapping)) and kind in _CONTAINERS:
            return self._items(value, name)
        if callable(value) and kind in _CALLABLES:
            return self._callable(value, name)
        return self._object(value, name)

    def _items(self, value: Any, name: str) -> str:
        if isinstance(value, Mapping):
            pairs = [f"{self.text(k, name)}: {self.text(v, name)}" for k, v in value.items()]
            return f"dict {{{', '.join(pairs)}}}"
        items = [self.text(item, name) for item in value]
        if isinstance(value, (set, frozenset)):
            items.sort()
        return f"{type(value).__name__} [{', '.join(items)}]"

    def _callable(self, value: Any, name: str) -> str:
        if isinstance(value, FunctionType):
            if value is os.getenv:
                raise NoText(name, value)
            # What Triton wraps for others has their module.
            if is_of(value, FOREIGN):
                return f"{value.__module__}:{value.__qualname__}"
            return self.refer(value)
        if isinstance(value, MethodType):
            return f"{self.text(value.__func__, name)} of {self.text(value.__self__, name)}"
        if isinstance(value, _Cached):
            # Pickled by its name alone.
            return f"cached {self.text(value.__wrapped__, name)}"
        if isinstance(value, BuiltinFunctionType):
            bound = value.__self__
            if bound is not None and not isinstance(bound, ModuleType):
                return f"{value.__qualname__} of {self.text(bound, name)}"
            return f"{value.__module__}:{value.__qualname__}"
        held = (value.func, value.args, tuple(value.keywords.items()))
        return f"partial {self.text(held, name)}"

    def _class(self, cls: type[Any], name: str) -> str:
        if getattr(cls, "__triton_aggregate__", False):
            return f"aggregate {self._class_of_aggregate(cls, name)}"
        if is_of(cls, FOREIGN):
            return f"{cls.__module__}:{cls.__qualname__}"
        bases = [self.text(base, name) for base in cls.__bases__]
        own = {n: v for n, v in vars(cls).items() if n not in _NOTED}
        if issubclass(cls, enum.Enum):
            # What else there is serves the look-up of members.
            members = {n: member.value for n, member in cls.__members__.items()}
            functions = {n: v for n, v in own.items() if isinstance(v, FunctionType)}
            own = {**functions, **members}
        held = [f"{n}={self._member(own[n], name)}" for n in sorted(own)]
        return f"class {cls.__qualname__} {bases} {held}"

    def _class_of_aggregate(self, cls: type[Any], name: str) -> str:
        """Triton copies methods out of the class as written, and keeps it for its fields."""
        setter = vars(cls)["__setattr__"]
        cells = dict(zip(setter.__code__.co_freevars, setter.__closure__, strict=True))
        return self.text(cells["cls"].cell_contents, name)

    def _member(self, value: Any, name: str) -> str:
        if isinstance(value, (MemberDescriptorType, GetSetDescriptorType)):
            return "descriptor"
        if isinstance(value, (staticmethod, classmethod)):
            return f"{type(value).__name__} {self.text(value.__func__, name)}"
        if isinstance(value, property):
            return f"property {self.text((value.fget, value.fset), name)}"
        return self.text(value, name)

    def _object(self, value: Any, name: str) -> str:
        """An object by what pickling would keep of it, which is all that it is.

        What has hidden state, such as a lock or a generator, cannot be pickled. The environment
        and tensors are as good as never the same in two processes.
        """
        if value is os.environ or hasattr(value, "data_ptr"):
            raise NoText(name, value)
        try:
            reduced = value.__reduce_ex__(2)
        except Exception as error:  # it runs code of the class
            raise NoText(name, value) from error
        if isinstance(reduced, str):
            # A singleton, by its name in a module.
            return f"{type(value).__qualname__} {reduced}"
        made, arguments, *rest = reduced
        parts = [made, tuple(arguments), *(r if n == 0 else _listed(r) for n, r in enumerate(rest))]
        return f"object {self.text(tuple(parts), name)}"

    def code(self, code: CodeType) -> str:
        """Code without the lines that it stands on."""
        held = [
            self.code(c) if isinstance(c, CodeType) else self.text(c, code.co_name)
            for c in code.co_consts
        ]
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_argcount)
        return f"{code.co_name} {code.co_code.hex()} {held} {names}"


def _listed(items: Any) -> Any:
    """An iterator over what a container holds, or None."""
    return None if items is None else list(items)


_CONTAINERS = frozenset({tuple, list, set, frozenset, dict, MappingProxyType})
# What `functools.cache` makes.
_Cached = type(functools.cache(len))
_CALLABLES = frozenset({FunctionType, MethodType, BuiltinFunctionType, functools.partial, _Cached})
