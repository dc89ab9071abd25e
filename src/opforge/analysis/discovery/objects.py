"""What can be told about an existing object without running code of its owner's."""

from __future__ import annotations

import builtins
import functools
import importlib.util
import os
import sys
import sysconfig
import types
from typing import Any, TypeGuard, TypeVar, overload

import torch

from ... import _compat
from ...model import MISSING

T = TypeVar("T")

OP_MARK = _compat.operators.MARK

_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


@functools.cache
def _standard_library() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(paths[which] + os.sep for which in ("stdlib", "platstdlib"))


def _package_folder(name: str) -> str | None:
    file = getattr(sys.modules.get(name), "__file__", None)
    return os.path.dirname(file) + os.sep if file else None  # noqa: PTH120  # millions of paths


def is_leaf_file(filename: str) -> bool:
    """Whether code belongs to torch, Triton, numpy, opforge or the standard library.

    Or to an installed package none of whose loaded modules uses torch or Triton.
    """
    return _is_leaf_file(filename, len(sys.modules))


# Answers hold while the number of loaded modules is the same.
@functools.lru_cache(maxsize=16384)
def _is_leaf_file(filename: str, loaded: int) -> bool:
    package = _installed_package(filename)
    return _is_own_leaf(filename) if package is None else _is_unrelated(package, loaded)


@functools.cache
def _installed_package(filename: str) -> str | None:
    """The installed package that a file belongs to, unless it is a leaf by name."""
    for folder in _site_folders(tuple(sys.path)):
        if filename.startswith(folder) and not _is_own_leaf(filename):
            return filename[len(folder) :].partition(os.sep)[0].removesuffix(".py")
    return None


@functools.lru_cache(maxsize=4)
def _site_folders(path: tuple[str, ...]) -> tuple[str, ...]:
    """Where packages are installed: pip leaves a `dist-info` beside each."""
    return tuple(
        entry.rstrip(os.sep) + os.sep
        for entry in path
        if os.path.isdir(entry) and any(f.endswith(".dist-info") for f in os.listdir(entry))  # noqa: PTH112, PTH208
    )


# Cached for good, although numpy may be imported later: nothing asks about its files before.
@functools.cache
def _is_own_leaf(filename: str) -> bool:
    if filename.startswith("<frozen "):
        return True
    for name in ("torch", "triton", "numpy", "opforge"):
        folder = _package_folder(name)
        if folder is not None and filename.startswith(folder):
            return True
    if any(mark in filename for mark in _INSTALLED):
        return False
    return filename.startswith(_standard_library())


_related: set[str] = set()


@functools.lru_cache(maxsize=1024)
def _is_unrelated(package: str, _loaded: int) -> bool:
    """Whether no loaded module of a package uses torch or Triton: sympy, packaging."""
    if package in _related:
        return False
    prefix = package + "."
    modules = [m for n, m in list(sys.modules.items()) if n == package or n.startswith(prefix)]
    if any(map(_has_torch, modules)):
        _related.add(package)
    return bool(modules) and package not in _related


def _has_torch(module: Any) -> bool:
    for value in list(getattr(module, "__dict__", {}).values()):
        home = value.__name__ if is_instance(value, types.ModuleType) else None
        home = value.__module__ if is_instance(value, (types.FunctionType, type)) else home
        if isinstance(home, str) and home.startswith(("torch", "triton")):
            return True
    return False


def is_leaf_module(name: str | None) -> bool:
    """Whether the functions of a module with this name are not read."""
    return not name or _is_leaf_module(name, len(sys.modules))


@functools.lru_cache(maxsize=16384)
def _is_leaf_module(name: str, _loaded: int) -> bool:
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None) if is_instance(module, types.ModuleType) else None
    if isinstance(file, str) and os.sep in file:
        return is_leaf_file(file)
    top = name.partition(".")[0]
    return top in {"torch", "triton", "numpy", "builtins"} or top in sys.stdlib_module_names


@functools.cache
def _is_installed(top: str) -> bool:
    """Whether a package of this name can be imported; finding a top-level one imports nothing."""
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False


def may_be_imported(name: str) -> bool:
    """Whether a module is not a leaf's, and its package is installed."""
    return not is_leaf_module(name) and _is_installed(name.partition(".")[0])


def is_leaf(obj: Any) -> bool:
    """Whether the code of a function, class, module or instance is a leaf's."""
    kind = type(obj)
    # Asked thousands of times in a reading, hence without a call in between.
    if kind is types.FunctionType:
        return _is_leaf_file(obj.__code__.co_filename, len(sys.modules))
    if issubclass(kind, types.ModuleType):
        return is_leaf_module(obj.__name__)
    if issubclass(kind, C_FUNCTIONS):
        return _is_leaf_builtin(obj)
    cls = obj if issubclass(kind, type) else kind
    module = type.__getattribute__(cls, "__module__")
    return not isinstance(module, str) or not module or _is_leaf_module(module, len(sys.modules))


C_FUNCTIONS = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)


def is_c_function(obj: Any) -> bool:
    return is_instance(obj, C_FUNCTIONS)


def applied_class(obj: Any) -> type[Any] | None:
    """The class whose `apply` a C function is, as it is since torch 2.15; None of another one."""
    if getattr(obj, "__name__", "") != "apply":
        return None
    cls = getattr(obj, "__self__", None)
    is_function = is_instance(cls, type) and issubclass(cls, torch.autograd.Function)
    return cls if is_function else None


def _is_leaf_builtin(obj: Any) -> bool:
    applied = applied_class(obj)
    if applied is not None:
        return is_leaf(applied)
    module = getattr(obj, "__module__", None)
    if isinstance(module, str):
        return is_leaf_module(module)
    # pybind's functions are methods of a record without a module.
    owner = getattr(obj, "__self__", None)
    cls = getattr(obj, "__objclass__", None) or type(owner)
    return is_instance(owner, type) or is_leaf(cls)


# As `type` itself reads them, bypassing any metaclass.
_mro = type.__dict__["__mro__"].__get__
_class_dict = type.__dict__["__dict__"].__get__


def class_attribute(cls: type[Any], name: str, after: type[Any] | None = None) -> Any:
    """A class's entry for a name as stored, or MISSING; `after` skips bases as `super` does."""
    mro = _mro(cls)
    if after is not None and after in mro:
        mro = mro[mro.index(after) + 1 :]
    for base in mro:
        found = _class_dict(base).get(name, MISSING)
        if found is not MISSING:
            return found
    return MISSING


def instance_attribute(obj: Any, name: str, slot: Any = None) -> Any:
    """What an object itself holds under a name, in its `__dict__` or a slot, or MISSING.

    `slot` is what its class has under the name, where that is known.
    """
    held = _compat.kernels.instance_dict(obj)
    if name in held:
        return held[name]
    if is_module_instance(obj):
        for group in ("_modules", "_parameters", "_buffers"):
            if name in held.get(group, ()):
                return held[group][name]
    if issubclass(type(obj), tuple):
        fields = class_attribute(type(obj), "_fields")
        if is_instance(fields, tuple) and name in fields:
            return tuple.__getitem__(obj, fields.index(name))
    slot = class_attribute(type(obj), name) if slot is None else slot
    if isinstance(slot, types.MemberDescriptorType):
        try:
            return slot.__get__(obj)
        except (AttributeError, TypeError):
            return MISSING
    return MISSING


@overload
def is_instance(obj: Any, cls: type[T]) -> TypeGuard[T]: ...
@overload
def is_instance(obj: Any, cls: tuple[type[Any], ...]) -> TypeGuard[Any]: ...
def is_instance(obj: Any, cls: type[Any] | tuple[type[Any], ...]) -> bool:
    """`isinstance` by the real class; `__class__` may be a property that runs code."""
    return issubclass(type(obj), cls)


def is_module_instance(obj: Any) -> bool:
    return issubclass(type(obj), torch.nn.Module)


def wrapped(obj: Any) -> Any:
    """The callable that a wrapper declares to wrap, or None."""
    is_function = type(obj) is types.FunctionType
    held = obj.__dict__ if is_function else _compat.kernels.instance_dict(obj)
    if not held:
        return None
    for name in ("__wrapped__", "fn", "func"):
        inner = held.get(name)
        if inner is not None and inner is not obj:
            return inner
    return None


def is_registered_op(obj: Any) -> bool:
    """Whether calling an object calls an operator: opforge's, MagiCompiler's or torch's."""
    if type(obj) is types.FunctionType:
        return OP_MARK in obj.__dict__
    return OP_MARK in _compat.kernels.instance_dict(obj) or (
        _compat.operators.operator_name(obj) is not None
    )


def operator_name(obj: Any) -> str | None:
    """The "ns::op" of the operator that an object calls, or None."""
    if type(obj) is types.FunctionType and OP_MARK not in obj.__dict__:
        return None
    marked = _compat.kernels.instance_dict(obj).get(OP_MARK)
    return _compat.operators.operator_name(obj if marked is None else marked)


def owner_of(fn: types.FunctionType) -> type[Any] | None:
    """The class whose body defined a function, found by its qualified name."""
    path = fn.__qualname__.split(".")[:-1]
    found: Any = fn.__globals__.get(path[0]) if path else None
    for part in path[1:]:
        found = class_attribute(found, part) if is_instance(found, type) else None
    if not is_instance(found, type):
        return None
    stored = type.__getattribute__(found, "__dict__").get(fn.__name__)
    return found if plain_function(stored) is fn else None


def plain_function(stored: Any) -> Any:
    """The function below `staticmethod`, `property` and decorators that keep `__wrapped__`."""
    for _ in range(8):
        if is_instance(stored, (staticmethod, classmethod)):
            stored = stored.__func__
        elif is_instance(stored, property):
            stored = stored.fget
        elif is_instance(stored, types.FunctionType) and hasattr(stored, "__wrapped__"):
            stored = stored.__wrapped__
        else:
            break
    return stored


def absolute_name(fn: types.FunctionType, name: str, level: int) -> str | None:
    """The absolute name of an import, or None where the level is not known."""
    if level <= 0:
        return name if level == 0 else None
    above = (fn.__globals__.get("__package__") or "").split(".")
    return ".".join([*above[: len(above) + 1 - level], *([name] if name else [])])


def closure_values(fn: types.FunctionType) -> list[Any]:
    """What the cells of a function hold, those that are set."""
    return [cell.cell_contents for cell in fn.__closure__ or () if is_set(cell)]


def is_set(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # reading is the test
    except ValueError:
        return False
    return True


def outside_value(fn: types.FunctionType, name: str) -> Any:
    """What a name is that a function takes from its closure, its module or the builtins."""
    free = fn.__code__.co_freevars
    if name in free:
        cell = (fn.__closure__ or ())[free.index(name)]
        return cell.cell_contents if is_set(cell) else MISSING
    found = fn.__globals__.get(name, MISSING)
    return vars(builtins).get(name, MISSING) if found is MISSING else found


def describe(obj: Any) -> str:
    """A function's or object's name for a message."""
    for value in (obj, type(obj)):
        name = _compat.kernels.instance_dict(value).get("__qualname__")
        if is_instance(value, (type, types.FunctionType)) or is_c_function(value):
            name = value.__qualname__
        if isinstance(name, str):
            return name
    return "?"
