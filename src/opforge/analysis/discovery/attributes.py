"""Attributes of values, looked up without running `__getattr__`, properties or descriptors."""

from __future__ import annotations

import ast
import functools
import sys
import types
from typing import Any

import torch

from ... import _compat
from ..._compat.kernels import instance_dict
from ...model import MISSING
from .borrowing import borrowed
from .bytecode import stored_attributes
from .containers import EMPTY, container_method
from .frame_table import FrameTable
from .frames import Context, Frame, Instance, Local
from .interest import Interest
from .machine import Machine
from .objects import (
    class_attribute,
    instance_attribute,
    is_instance,
    is_leaf,
    is_leaf_module,
    operator_name,
)
from .scopes import scope_of
from .values import (
    ANY,
    NOTHING,
    UNKNOWN,
    UNKNOWN_ARGUMENTS,
    Arguments,
    BoundMethod,
    Known,
    LaunchValue,
    Method,
    OperatorValue,
    OpSpace,
    Partial,
    Super,
    Unknown,
    Value,
    Values,
    known_arguments,
    union,
)

# By id, because comparing or hashing a class may run its metaclass's code.
_CONSTANTS = frozenset(map(id, (str, int, float, bool, type(None))))
# Objects whose attributes are not only in their `__dict__` and their class.
_WITH_PARTS = (
    torch.nn.Module, tuple, types.FunctionType, types.MethodType, functools.partial
)  # fmt: skip
# Attributes of an operator that are not overloads.
_OPERATOR_PARTS = frozenset({"overloads", "name", "op", "py_impl", "tags", "redispatch"})


class AttributeResolver:
    """Looks attributes up; the machine runs getters and evaluates what was stored."""

    def __init__(self, machine: Machine, frames: FrameTable, interest: Interest) -> None:
        self.machine = machine
        self.frames = frames
        self.known = interest.known
        # How many getters have been run: what a getter gives is asked for again each time.
        self._getters_run = 0
        self._on_self: dict[int, list[tuple[types.FunctionType, frozenset[str]]]] = {}

    def find(self, frame: Frame, value: Value, name: str, node: ast.AST) -> Values:
        """An attribute of a value; what a property runs counts as run by `node`."""
        if type(value) is Unknown:
            return _plain_attribute(value, name)
        if isinstance(value, Known):
            # No code of the user's runs during a reading, so that an attribute stays what it is.
            attributes: dict[str, Values] = value.attributes
            found = attributes.get(name)
            if found is None:
                before = self._getters_run
                found = self._of_object(frame, value, name, node)
                if self._getters_run == before:
                    attributes[name] = found
            return found
        if isinstance(value, Instance):
            return self._of_instance(frame, value, name, node)
        if isinstance(value, Super):
            return self._of_super(frame, value, name, node)
        if isinstance(value, Context):
            return self._of_context(value, name)
        if isinstance(value, Local) and isinstance(value.scope.node, ast.ClassDef):
            return self.member(value, name)
        return _plain_attribute(value, name)

    def member(self, cls: Local, name: str, owner: Value | None = None) -> Values:
        """A member of a class that the code being read defines, bound to `owner` if given."""
        body = self.frames.of_local(cls.frame, cls, Arguments())
        if name not in cls.scope.bindings:
            bases = getattr(cls.scope.node, "bases", ())
            found = [v for base in bases for v in self.machine.evaluate(cls.frame, base)]
            return union(*(self.find(cls.frame, v, name, cls.scope.node) for v in found))
        values = self.machine.lookup(body, name)
        nodes = [b.node for b in cls.scope.bindings[name]]
        if any(_decorated_as(n, "classmethod") for n in nodes):
            return tuple(BoundMethod(v, cls) for v in values)
        if owner is None or any(_decorated_as(n, "staticmethod") for n in nodes):
            return values
        return tuple(BoundMethod(v, owner) if isinstance(v, Local) else v for v in values)

    def _of_object(self, frame: Frame, value: Known, name: str, node: ast.AST) -> Values:
        obj = value.obj
        kind = type(obj)
        # Most are in a plain module.
        if kind is types.ModuleType and name in obj.__dict__:
            return (self.known(obj.__dict__[name]),)
        if issubclass(kind, types.ModuleType):
            return self._of_module(obj, name)
        if issubclass(kind, type):
            stored = class_attribute(obj, name)
            return ANY if stored is MISSING else self._from_class(frame, stored, value, node)
        method = container_method(value, name)
        if method is not None:
            return (method,)
        if _compat.operators.operator_name(obj) is not None:
            return _plain_attribute(OperatorValue(operator_name(obj) or ""), name)
        if name in {"run", "__getitem__", "warmup"}:
            kernel = _compat.kernels.launched_kernel(obj)
            if kernel is not None:
                return _kernel_attribute(kernel, name)
        return self._instance_member(frame, value, name, node)

    def _instance_member(self, frame: Frame, value: Known, name: str, node: ast.AST) -> Values:
        obj = value.obj
        stored = class_attribute(type(obj), name)
        if type(stored) is types.FunctionType and not issubclass(type(obj), _WITH_PARTS):
            # Most are methods, which an object seldom has one of its own in place of.
            held = instance_dict(obj)
            if name not in held:
                return (BoundMethod(self.known(stored), value),)
            return (self.known(held[name]),)
        if issubclass(type(stored), property):
            return self._from_class(frame, stored, value, node)
        held = instance_attribute(obj, name, stored)
        if held is not MISSING:
            return (self.known(held),)
        if issubclass(type(obj), (types.FunctionType, types.MethodType, functools.partial)):
            if name in {"__func__", "__self__", "func", "__wrapped__"} and hasattr(obj, name):
                return (self.known(getattr(obj, name)),)
            return ANY
        if stored is not MISSING:
            return self._from_class(frame, stored, value, node)
        computed = class_attribute(type(obj), "__getattr__")
        if type(computed) is types.FunctionType and not is_leaf(computed):
            return (Unknown(f"'{name}' is computed by __getattr__ of {type(obj).__qualname__}"),)
        return ANY

    def _from_class(self, frame: Frame, stored: Any, owner: Value, node: ast.AST) -> Values:
        """What reading a class's entry gives, through the class or through an instance."""
        kind = type(stored)
        if id(kind) in _CONSTANTS:
            return (self.known(stored),)
        through_class = isinstance(owner, Known) and is_instance(owner.obj, type)
        if kind is types.FunctionType:
            method = self.known(stored)
            return (method,) if through_class else (BoundMethod(method, owner),)
        if issubclass(kind, staticmethod):
            return (self.known(stored.__func__),)
        if issubclass(kind, (classmethod, types.ClassMethodDescriptorType)):
            return self._class_method(stored, owner if through_class else self._class_of(owner))
        if issubclass(kind, (property, functools.cached_property)):
            getter = stored.fget if is_instance(stored, property) else stored.func
            if through_class or not is_instance(getter, types.FunctionType) or is_leaf(getter):
                return ANY
            self._getters_run += 1
            bound = BoundMethod(self.known(getter), owner)
            return self.machine.run(frame, bound, Arguments(), node)
        if issubclass(kind, functools.partialmethod):
            given = known_arguments(stored.args, stored.keywords)
            return (Partial(BoundMethod(self.known(stored.func), owner), given),)
        getter = class_attribute(kind, "__get__")
        if is_instance(getter, types.FunctionType) and not is_leaf(getter):
            return (Unknown(f"it is computed by __get__ of {type(stored).__qualname__}"),)
        if through_class or not _binds(stored):
            return (self.known(stored),)
        return (BoundMethod(self.known(stored), owner),)

    def _class_method(self, stored: Any, cls: Value) -> Values:
        if is_instance(stored, classmethod):
            return (BoundMethod(self.known(stored.__func__), cls),)
        return (self.known(stored.__get__(None, cls.obj)),) if isinstance(cls, Known) else ANY

    def _of_instance(self, frame: Frame, value: Instance, name: str, node: ast.AST) -> Values:
        """An attribute of an object that the code being read makes."""
        if isinstance(value.cls, Local):
            found = self.member(value.cls, name, value)
            return union(found, *self._local_stores(frame, value, value.cls, name)) or ANY
        cls = value.cls.obj
        stored = class_attribute(cls, name)
        if is_instance(stored, (property, functools.cached_property)):
            return self._from_class(frame, stored, value, node)
        found = union(*self._stores(frame, value, cls, name))
        if stored is not MISSING and not is_instance(stored, types.MemberDescriptorType):
            found = union(found, self._from_class(frame, stored, value, node))
        return union(found, _field(cls, value.arguments, name)) or ANY

    def _stores(self, frame: Frame, value: Instance, cls: type[Any], name: str) -> list[Values]:
        """`self.name = value` in the methods of a class and of its bases."""
        found: list[Values] = []
        for method in self._storing_methods(cls, name):
            own = type.__getattribute__(cls, "__dict__").get("__init__") is method
            given = value.arguments if own else UNKNOWN_ARGUMENTS
            inner = self.frames.of_function(frame, method, given.after((value,)))
            if inner is not None:
                found.append(self._stored_on_first(inner, name))
        return found

    def _local_stores(self, frame: Frame, value: Instance, cls: Local, name: str) -> list[Values]:
        """The same for a class that the code being read defines."""
        found: list[Values] = []
        for node in [b.node for bindings in cls.scope.bindings.values() for b in bindings]:
            if not isinstance(node, ast.FunctionDef) or not node.args.args:
                continue
            scope = scope_of(node)
            if (scope.parameters[0], name) in scope.attribute_stores:
                given = value.arguments if node.name == "__init__" else UNKNOWN_ARGUMENTS
                method = Local(scope, cls.frame)
                inner = self.frames.of_local(frame, method, given.after((value,)))
                found.append(self._stored_on_first(inner, name))
        return found

    def _of_context(self, value: Context, name: str) -> Values:
        writer = value.writer
        return ANY if writer is None else self._stored_on_first(writer, name) or ANY

    def _stored_on_first(self, frame: Frame, name: str) -> Values:
        """What a function stores as an attribute of its first parameter."""
        first, *_ = (*frame.scope.parameters, "")
        stores = frame.scope.attribute_stores.get((first, name), [])
        return self.machine.stored(frame, f"{first}.{name}", stores)

    def _storing_methods(self, cls: type[Any], name: str) -> list[types.FunctionType]:
        """The methods of a class and of its bases that contain `something.name = ...`.

        And the functions that they call on `self`.
        """
        known = self._on_self.get(id(cls))
        if known is None:
            bases = [b for b in type.__getattribute__(cls, "__mro__") if not is_leaf(b)]
            stored = [v for b in bases for v in type.__getattribute__(b, "__dict__").values()]
            own = [v for v in stored if is_instance(v, types.FunctionType)]
            own += [f for method in own for f in borrowed(method)]
            known = self._on_self[id(cls)] = [(m, stored_attributes(m.__code__)) for m in own]
        return [method for method, stores in known if name in stores]

    def _of_super(self, frame: Frame, value: Super, name: str, node: ast.AST) -> Values:
        cls = self._class_of(value.self)
        real = cls.obj if isinstance(cls, Known) and is_instance(cls.obj, type) else value.cls
        stored = class_attribute(real, name, after=value.cls)
        return ANY if stored is MISSING else self._from_class(frame, stored, value.self, node)

    def _of_module(self, module: types.ModuleType, name: str) -> Values:
        if _compat.operators.is_root(module):
            if class_attribute(type(module), name) is not MISSING:
                return ANY
            return (OpSpace(name),)
        space = _compat.operators.namespace_name(module)
        if space is not None:
            return (OperatorValue(f"{space}::{name}"),)
        held = _compat.kernels.instance_dict(module)
        if name in held:
            return (self.known(held[name]),)
        below = sys.modules.get(f"{module.__name__}.{name}")
        if below is not None:
            return (self.known(below),)
        if is_leaf_module(module.__name__):
            return ANY
        return (Unknown(f"'{module.__name__}' has no '{name}' yet", sticky=True),)

    def _class_of(self, value: Value) -> Value:
        if isinstance(value, Known):
            return value if is_instance(value.obj, type) else self.known(type(value.obj))
        return value.cls if isinstance(value, Instance) else UNKNOWN


def _plain_attribute(value: Value, name: str) -> Values:
    """An attribute of a value that no class of anybody's defines."""
    if isinstance(value, Unknown):
        # Most empty tables are caches of tensors.
        plain = value is EMPTY and hasattr(torch.Tensor, name)
        return (value,) if value.sticky and not plain else ANY
    if isinstance(value, OpSpace):
        return (OperatorValue(f"{value.name}::{name}"),)
    if isinstance(value, OperatorValue):
        if name.startswith("_") or name in _OPERATOR_PARTS:
            return ANY
        named = name != "default" and not _compat.operators.is_built_in(value.name)
        is_overload = named and "." not in value.name
        return (OperatorValue(f"{value.name}.{name}") if is_overload else value,)
    if isinstance(value, Partial) and name == "func":
        return (value.fn,)
    if isinstance(value, BoundMethod) and name in {"__func__", "__wrapped__"}:
        return (value.fn,)
    if isinstance(value, Local) and name == "__wrapped__":
        return (value,)
    method = container_method(value, name)
    return ANY if method is None else (method,)


def _kernel_attribute(kernel: Any, name: str) -> Values:
    if name == "__getitem__":
        return (Method(Known(kernel), name),)
    return (LaunchValue(kernel),) if name == "run" else ANY


def _field(cls: type[Any], given: Arguments, name: str) -> Values:
    """What the generated `__init__` of a dataclass or NamedTuple stores."""
    fields = class_attribute(cls, "__dataclass_fields__")
    listed = list(fields) if is_instance(fields, dict) else class_attribute(cls, "_fields")
    if not isinstance(listed, (list, tuple)) or name not in listed:
        return NOTHING
    if name in given.keywords:
        return given.keywords[name]
    position = listed.index(name)
    if position < len(given.positional):
        return given.positional[position]
    return union(given.star, given.double)


def _binds(stored: Any) -> bool:
    """Whether reading a class's entry through an instance gives a method."""
    if is_instance(stored, types.FunctionType):
        return True
    # `lru_cache` on a method, and other people's descriptors around one.
    if is_instance(stored, type):
        return False
    return all(class_attribute(type(stored), n) is not MISSING for n in ("__get__", "__call__"))


def _decorated_as(node: ast.AST, name: str) -> bool:
    decorators = getattr(node, "decorator_list", ())
    return any(isinstance(d, ast.Name) and d.id == name for d in decorators)
