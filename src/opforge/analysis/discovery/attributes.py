"""Attributes of values, looked up without running `__getattr__`, properties or descriptors."""

from __future__ import annotations

import abc
import ast
import functools
import sys
import types
from typing import Any

import torch

from ... import _compat
from ...model import MISSING
from .borrowing import borrowed
from .bytecode import stores_attribute
from .containers import EMPTY, container_method
from .frames import Frame, Outcome
from .objects import (
    class_attribute,
    instance_attribute,
    is_instance,
    is_leaf,
    is_leaf_module,
    is_subclass,
    operator_name,
)
from .scopes import scope_of
from .values import (
    ANY,
    NOTHING,
    UNKNOWN,
    UNKNOWN_ARGUMENTS,
    Arguments,
    Bound,
    Context,
    Instance,
    Known,
    Launch,
    Local,
    Method,
    Operator,
    OpSpace,
    Partial,
    Super,
    Unknown,
    Value,
    Values,
    union,
)

# Attributes of an operator that are no overloads.
_OPERATOR_PARTS = frozenset({"overloads", "name", "op", "py_impl", "tags", "redispatch"})


class Attributes(abc.ABC):
    """Finds attributes; the class below this one runs getters and evaluates what was stored."""

    def __init__(self) -> None:
        self.storing: dict[tuple[int, str], list[types.FunctionType]] = {}
        self.on_self: dict[int, list[types.FunctionType]] = {}

    @abc.abstractmethod
    def evaluate(self, frame: Frame, node: ast.AST) -> Values: ...

    @abc.abstractmethod
    def call(
        self, frame: Frame, callee: Value, arguments: Arguments, outcome: Outcome, cost: int = 1
    ) -> None: ...

    @abc.abstractmethod
    def results(self, outcome: Outcome) -> Values: ...

    @abc.abstractmethod
    def frame_of(
        self, caller: Frame, fn: types.FunctionType, arguments: Arguments, cost: int
    ) -> Frame | None: ...

    @abc.abstractmethod
    def local_frame(self, caller: Frame, local: Local, arguments: Arguments) -> Frame: ...

    @abc.abstractmethod
    def stored_values(self, frame: Frame, key: str, stores: list[ast.expr]) -> Values: ...

    @abc.abstractmethod
    def lookup(self, frame: Frame, name: str) -> Values: ...

    def run(self, frame: Frame, callee: Value, arguments: Arguments, node: ast.AST) -> Values:
        """The result of a call that no call expression shows: a property, a `__getitem__`."""
        outcome = Outcome()
        self.call(frame, callee, arguments, outcome)
        frame.implied.extend(outcome.effects)
        frame.implied_at.extend([node] * len(outcome.effects))
        return self.results(outcome)

    def attribute(  # noqa: C901  # a case for each kind of value
        self, frame: Frame, value: Value, name: str, node: ast.AST
    ) -> Values:
        if isinstance(value, Unknown):
            # Most empty tables are caches of tensors.
            plain = value is EMPTY and hasattr(torch.Tensor, name)
            return (value,) if value.sticky and not plain else ANY
        if isinstance(value, Known):
            return self.known_attribute(frame, value, name, node)
        if isinstance(value, Instance):
            return self.made_attribute(frame, value, name, node)
        if isinstance(value, OpSpace):
            return (Operator(f"{value.name}::{name}"),)
        if isinstance(value, Operator):
            plain = name.startswith("_") or name in _OPERATOR_PARTS
            return ANY if plain else (value,)
        if isinstance(value, Super):
            return self.super_attribute(frame, value, name, node)
        if isinstance(value, Context):
            return self.context_attribute(value, name)
        if isinstance(value, Local) and isinstance(value.scope.node, ast.ClassDef):
            return self.class_member(value, name, None)
        if isinstance(value, Partial) and name == "func":
            return (value.fn,)
        if isinstance(value, Bound) and name in {"__func__", "__wrapped__"}:
            return (value.fn,)
        if isinstance(value, Local) and name == "__wrapped__":
            return (value,)
        method = container_method(value, name)
        return ANY if method is None else (method,)

    def known_attribute(self, frame: Frame, value: Known, name: str, node: ast.AST) -> Values:
        obj = value.obj
        kind = type(obj)
        if issubclass(kind, types.ModuleType):
            return _module_attribute(obj, name)
        if issubclass(kind, type):
            stored = class_attribute(obj, name)
            return ANY if stored is MISSING else self.from_class(frame, stored, value, node)
        method = container_method(value, name)
        if method is not None:
            return (method,)
        if _compat.operators.operator_name(obj) is not None:
            return self.attribute(frame, Operator(operator_name(obj) or ""), name, node)
        kernel = _compat.kernels.launched_kernel(obj)
        if kernel is not None and name in {"run", "__getitem__", "warmup"}:
            if name == "__getitem__":
                return (Method(Known(kernel), name),)
            return (Launch(kernel),) if name == "run" else ANY
        return self.instance_member(frame, value, name, node)

    def instance_member(self, frame: Frame, value: Known, name: str, node: ast.AST) -> Values:
        obj = value.obj
        stored = class_attribute(type(obj), name)
        if is_instance(stored, property):
            return self.from_class(frame, stored, value, node)
        held = instance_attribute(obj, name)
        if held is not MISSING:
            return (Known(held),)
        if is_instance(obj, (types.FunctionType, types.MethodType, functools.partial)):
            if name in {"__func__", "__self__", "func", "__wrapped__"} and hasattr(obj, name):
                return (Known(getattr(obj, name)),)
            return ANY
        if stored is not MISSING:
            return self.from_class(frame, stored, value, node)
        computed = class_attribute(type(obj), "__getattr__")
        if is_instance(computed, types.FunctionType) and not is_leaf(computed):
            return (Unknown(f"'{name}' is computed by __getattr__ of {type(obj).__qualname__}"),)
        return ANY

    def from_class(self, frame: Frame, stored: Any, owner: Value, node: ast.AST) -> Values:
        """What a class's entry gives when it is read through the class or an instance."""
        through_class = isinstance(owner, Known) and is_instance(owner.obj, type)
        if type(stored) is types.FunctionType:
            return (Known(stored),) if through_class else (Bound(Known(stored), owner),)
        if is_instance(stored, staticmethod):
            return (Known(stored.__func__),)
        if is_instance(stored, classmethod):
            cls = owner if through_class else _class_of(owner)
            return (Bound(Known(stored.__func__), cls),)
        if is_instance(stored, (property, functools.cached_property)):
            getter = stored.fget if is_instance(stored, property) else stored.func
            if through_class or not is_instance(getter, types.FunctionType) or is_leaf(getter):
                return ANY
            return self.run(frame, Bound(Known(getter), owner), Arguments(), node)
        if is_instance(stored, functools.partialmethod):
            given = known_arguments(stored.args, stored.keywords)
            method = Bound(Known(stored.func), owner)
            return (Partial(method, given),)
        getter = class_attribute(type(stored), "__get__")
        if is_instance(getter, types.FunctionType) and not is_leaf(getter):
            return (Unknown(f"it is computed by __get__ of {type(stored).__qualname__}"),)
        if through_class or not _binds(stored):
            return (Known(stored),)
        return (Bound(Known(stored), owner),)

    def made_attribute(self, frame: Frame, value: Instance, name: str, node: ast.AST) -> Values:
        """An attribute of an object that the code being read makes."""
        if isinstance(value.cls, Local):
            found = self.class_member(value.cls, name, value)
            return union(found, *self.local_stores(frame, value, name)) or ANY
        cls = value.cls.obj
        stored = class_attribute(cls, name)
        if is_instance(stored, (property, functools.cached_property)):
            return self.from_class(frame, stored, value, node)
        found = union(*self.stores(frame, value, name))
        if stored is not MISSING and not is_instance(stored, types.MemberDescriptorType):
            found = union(found, self.from_class(frame, stored, value, node))
        return union(found, self.field(value, name)) or ANY

    def field(self, value: Instance, name: str) -> Values:
        """What a dataclass's or a NamedTuple's made-up `__init__` stores."""
        cls = value.cls.obj if isinstance(value.cls, Known) else None
        fields = class_attribute(cls, "__dataclass_fields__") if cls is not None else MISSING
        names = class_attribute(cls, "_fields") if cls is not None else MISSING
        listed = list(fields) if is_instance(fields, dict) else names
        if not isinstance(listed, (list, tuple)) or name not in listed:
            return NOTHING
        given = value.arguments
        position = listed.index(name)
        if name in given.keywords:
            return given.keywords[name]
        if position < len(given.positional):
            return given.positional[position]
        return union(given.star, given.double)

    def stores(self, frame: Frame, value: Instance, name: str) -> list[Values]:
        """`self.name = value` in the methods of a class and of its bases."""
        assert isinstance(value.cls, Known)
        found: list[Values] = []
        for method in self.storing_methods(value.cls.obj, name):
            own = type.__getattribute__(value.cls.obj, "__dict__").get("__init__") is method
            given = value.arguments if own else UNKNOWN_ARGUMENTS
            inner = self.frame_of(frame, method, given.after((value,)), 1)
            if inner is not None and inner.scope.parameters:
                key = (inner.scope.parameters[0], name)
                nodes = inner.scope.attribute_stores.get(key, [])
                found.append(self.stored_values(inner, f"{key[0]}.{name}", nodes))
        return found

    def storing_methods(self, cls: type[Any], name: str) -> list[types.FunctionType]:
        """The methods of a class and of its bases that have `something.name = ...`."""
        known = self.storing.get((id(cls), name))
        if known is None:
            known = self.storing[id(cls), name] = [
                method
                for method in self.methods_on_self(cls)
                if stores_attribute(method.__code__, name)
            ]
        return known

    def methods_on_self(self, cls: type[Any]) -> list[types.FunctionType]:
        """The methods of a class and of its bases, and functions that they call on `self`."""
        known = self.on_self.get(id(cls))
        if known is None:
            bases = [b for b in type.__getattribute__(cls, "__mro__") if not is_leaf(b)]
            stored = [v for b in bases for v in type.__getattribute__(b, "__dict__").values()]
            own = [v for v in stored if is_instance(v, types.FunctionType)]
            known = self.on_self[id(cls)] = [*own, *(f for m in own for f in borrowed(m))]
        return known

    def local_stores(self, frame: Frame, value: Instance, name: str) -> list[Values]:
        assert isinstance(value.cls, Local)
        found: list[Values] = []
        for binding in value.cls.scope.bindings.values():
            for one in binding:
                if not isinstance(one.node, ast.FunctionDef) or not one.node.args.args:
                    continue
                scope = scope_of(one.node)
                key = (one.node.args.args[0].arg, name)
                if key in scope.attribute_stores:
                    first = one.node.name == "__init__"
                    given = value.arguments if first else UNKNOWN_ARGUMENTS
                    method = Local(scope, value.cls.frame)
                    inner = self.local_frame(frame, method, given.after((value,)))
                    nodes = scope.attribute_stores[key]
                    found.append(self.stored_values(inner, f"{key[0]}.{name}", nodes))
        return found

    def class_member(self, cls: Local, name: str, owner: Value | None) -> Values:
        """A member of a class that the code being read defines."""
        body = self.local_frame(cls.frame, cls, Arguments())
        if name not in cls.scope.bindings:
            bases = [self.evaluate(cls.frame, b) for b in getattr(cls.scope.node, "bases", ())]
            found = [
                self.attribute(cls.frame, b, name, cls.scope.node) for group in bases for b in group
            ]
            return union(*found)
        values = self.lookup(body, name)
        nodes = [b.node for b in cls.scope.bindings[name]]
        plain = any(_decorated_as(n, "staticmethod") for n in nodes)
        if any(_decorated_as(n, "classmethod") for n in nodes):
            return tuple(Bound(v, cls) for v in values)
        if owner is None or plain:
            return values
        return tuple(Bound(v, owner) if isinstance(v, Local) else v for v in values)

    def super_attribute(self, frame: Frame, value: Super, name: str, node: ast.AST) -> Values:
        owner = value.self
        cls = _class_of(owner)
        real = cls.obj if isinstance(cls, Known) and is_instance(cls.obj, type) else value.cls
        stored = class_attribute(real, name, after=value.cls)
        if stored is MISSING:
            return ANY
        return self.from_class(frame, stored, owner, node)

    def context_attribute(self, value: Context, name: str) -> Values:
        found: list[Values] = []
        for writer in value.writers:
            for parameter in writer.scope.parameters[:1]:
                nodes = writer.scope.attribute_stores.get((parameter, name), [])
                found.append(self.stored_values(writer, f"{parameter}.{name}", nodes))
        return union(*found) or ANY


def known_arguments(args: tuple[Any, ...], keywords: dict[str, Any]) -> Arguments:
    positional = tuple((Known(a),) for a in args)
    return Arguments(positional, {k: (Known(v),) for k, v in keywords.items()})


def _module_attribute(module: types.ModuleType, name: str) -> Values:
    if _compat.operators.is_root(module):
        if class_attribute(type(module), name) is not MISSING:
            return ANY
        return (OpSpace(name),)
    space = _compat.operators.namespace_name(module)
    if space is not None:
        return (Operator(f"{space}::{name}"),)
    held = _compat.kernels.instance_dict(module)
    if name in held:
        return (Known(held[name]),)
    below = sys.modules.get(f"{module.__name__}.{name}")
    if below is not None:
        return (Known(below),)
    if is_leaf_module(module.__name__):
        return ANY
    return (Unknown(f"'{module.__name__}' has no '{name}' yet", sticky=True),)


def _class_of(value: Value) -> Value:
    if isinstance(value, Known):
        return value if is_instance(value.obj, type) else Known(type(value.obj))
    return value.cls if isinstance(value, Instance) else UNKNOWN


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


def is_autograd_function(obj: Any) -> bool:
    return is_subclass(obj, torch.autograd.Function)


def is_module_instance(obj: Any) -> bool:
    return is_instance(obj, torch.nn.Module)
