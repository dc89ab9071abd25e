"""Operators that a class defines: `a @ b`, `-a`, `a[i] = b`.

Most operators act on numbers and tensors. In a function that neither mentions nor is given a
class or an object with operators of its own, all of them do.
"""

from __future__ import annotations

import ast
import types
from typing import Any

from ..._compat.kernels import instance_dict
from ...model import MISSING
from .attributes import AttributeResolver
from .bytecode import mentions
from .frames import Frame, Instance, Local
from .machine import Machine
from .objects import class_attribute, closure_values, is_instance, is_leaf
from .scopes import Operation, operands
from .values import (
    ANY,
    NOTHING,
    Arguments,
    BoundMethod,
    Known,
    Value,
    Values,
    union,
)

_BINARY: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.MatMult: "matmul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.BitAnd: "and",
}
_UNARY: dict[type[ast.AST], str] = {
    ast.USub: "neg",
    ast.UAdd: "pos",
    ast.Invert: "invert",
}
# The left operand's method, and the right one's where the left has none.
_COMPARISONS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Eq: ("eq", "eq"),
    ast.NotEq: ("ne", "ne"),
    ast.Lt: ("lt", "gt"),
    ast.LtE: ("le", "ge"),
    ast.Gt: ("gt", "lt"),
    ast.GtE: ("ge", "le"),
    ast.In: ("", "contains"),
    ast.NotIn: ("", "contains"),
}
_NAMES = [
    *(f"{kind}{name}" for name in _BINARY.values() for kind in ("", "r", "i")),
    *_UNARY.values(),
    *(name for pair in _COMPARISONS.values() for name in pair if name),
    "getitem",
    "setitem",
]
# By id, because comparing or hashing a class may run its metaclass's code.
_WITHOUT = frozenset(
    map(id, (types.FunctionType, types.ModuleType, str, int, float, bool, type(None)))
)
_OBJECTS = frozenset((Instance, Known))
_METHODS = frozenset(f"__{name}__" for name in _NAMES)


class OperatorTable:
    """Runs the methods behind operators."""

    def __init__(self, machine: Machine, attributes: AttributeResolver) -> None:
        self.machine = machine
        self.attributes = attributes
        # By id; each object is kept, so that no other takes its id.
        self._known: dict[int, tuple[Any, bool]] = {}

    def matter(self, frame: Frame) -> bool:
        """Whether an operator of a frame may be one that a class defines."""
        if frame.has_operators is None:
            frame.has_operators = self._found(frame)
        return frame.has_operators

    def operate(self, frame: Frame, node: Operation) -> Values:
        """What an operator gives, or nothing where a class defines none for its operands."""
        if not self.matter(frame):
            return NOTHING
        if isinstance(node, ast.BinOp):
            # Asked of all at once: a sum of many terms is a tree as deep.
            if not any(self._may_be_object(frame, one) for one in operands(node)):
                return NOTHING
            name = _BINARY[type(node.op)]
            return self._between(frame, node, (node.left, node.right), (name, f"r{name}"))
        if isinstance(node, ast.AugAssign):
            name = _BINARY[type(node.op)]
            found = self._apply(frame, node, node.target, f"i{name}", node.value)
            sides = (node.target, node.value)
            return found or self._between(frame, node, sides, (name, f"r{name}"))
        if isinstance(node, ast.UnaryOp):
            return self._apply(frame, node, node.operand, _UNARY.get(type(node.op), ""))
        if isinstance(node, ast.Compare):
            return self._compare(frame, node)
        name = "setitem" if type(node.ctx) is ast.Store else "getitem"
        return self._apply(frame, node, node.value, name, node.slice)

    def _found(self, frame: Frame) -> bool:
        for group in frame.parameters.values():
            if group is ANY:
                continue
            for value in group:
                kind = type(value)
                if kind is Known and id(type(value.obj)) in _WITHOUT:  # type: ignore[attr-defined]
                    continue
                if kind in _OBJECTS and self._value_has_operators(value):
                    return True
        if frame.parent is not None:
            # They share a function, whose names include those of the scopes nested in it.
            frame = frame.parent
            return frame.has_operators or self._found(frame)
        return self._fn_has_operators(frame.fn)

    def _value_has_operators(self, value: Value) -> bool:
        if isinstance(value, Instance):
            if isinstance(value.cls, Local):
                return True
            # What `self` holds is made in `__init__`; asking every method takes too long.
            init = class_attribute(value.cls.obj, "__init__")
            makes = is_instance(init, types.FunctionType) and self._fn_has_operators(init)
            return makes or self._has_operators(value.cls.obj)
        return isinstance(value, Known) and self._has_operators(value.obj)

    def _fn_has_operators(self, fn: types.FunctionType) -> bool:
        known = self._known.get(id(fn))
        if known is None:
            said = mentions(fn.__code__)
            values = [*map(fn.__globals__.get, said.globals_read)]
            if fn.__closure__:
                values += closure_values(fn)
            others: list[Any] = []
            for value in values:
                kind = type(value)
                # Most are functions and modules.
                if kind is types.FunctionType:
                    continue
                if not issubclass(kind, types.ModuleType):
                    if id(kind) not in _WITHOUT:
                        others.append(value)
                elif not is_leaf(value):
                    others += map(instance_dict(value).get, said.names)
            found = said.has_classes or any(map(self._has_operators, others))
            known = self._known[id(fn)] = (fn, found)
        return known[1]

    def _has_operators(self, obj: Any) -> bool:
        """Whether a class, an object or something it holds has operators written in Python."""
        kind = type(obj)
        if id(kind) in _WITHOUT:
            return False
        known = self._known.get(id(obj))
        if known is None:
            if issubclass(kind, type):
                found = _defines_operators(obj)
            else:
                found = not issubclass(kind, types.ModuleType) and self._object_has_operators(obj)
            known = self._known[id(obj)] = (obj, found)
        return known[1]

    def _object_has_operators(self, obj: Any) -> bool:
        kind = type(obj)
        if is_leaf(kind):
            return False
        held = instance_dict(obj).values()
        return self._has_operators(kind) or any(
            self._has_operators(type(v)) for v in held if not issubclass(type(v), type)
        )

    def _compare(self, frame: Frame, node: ast.Compare) -> Values:
        found = []
        left = node.left
        for kind, right in zip(node.ops, node.comparators, strict=True):
            names = _COMPARISONS.get(type(kind))
            if names is not None:
                found.append(self._between(frame, node, (left, right), names))
            left = right
        return union(*found)

    def _between(
        self,
        frame: Frame,
        node: Operation,
        sides: tuple[ast.expr, ast.expr],
        names: tuple[str, str],
    ) -> Values:
        """The left operand's method, or else the right one's."""
        left, right = sides
        found = self._apply(frame, node, left, names[0], right)
        return found or self._apply(frame, node, right, names[1], left)

    def _apply(
        self,
        frame: Frame,
        node: Operation,
        owner: ast.expr,
        name: str,
        other: ast.expr | None = None,
    ) -> Values:
        """`owner.__name__(other)`, for the owners whose class defines the method."""
        found = []
        for value in self.machine.evaluate(frame, owner):
            for method in self._method_of(value, f"__{name}__"):
                given = () if other is None else (self.machine.evaluate(frame, other),)
                found.append(self.machine.run(frame, method, Arguments(given), node))
        return union(*found)

    def _may_be_object(self, frame: Frame, node: ast.expr) -> bool:
        return any(map(_is_object, self.machine.evaluate(frame, node)))

    def _method_of(self, value: Value, name: str) -> Values:
        if isinstance(value, Instance) and isinstance(value.cls, Local):
            return self.attributes.member(value.cls, name, value)
        cls = _class_of(value)
        stored = MISSING if cls is None else class_attribute(cls, name)
        return (BoundMethod(Known(stored), value),) if _is_own(stored) else NOTHING


def _defines_operators(cls: type[Any]) -> bool:
    if is_leaf(cls):
        return False
    for base in type.__getattribute__(cls, "__mro__"):
        if base is object:  # whose own are in C
            continue
        held = type.__getattribute__(base, "__dict__")
        if any(_is_own(held[name]) for name in held.keys() & _METHODS):
            return True
    return False


def _is_own(stored: Any) -> bool:
    """Whether a method is written in a file; a dataclass's `__eq__` is generated."""
    if type(stored) is not types.FunctionType or is_leaf(stored):
        return False
    return not stored.__code__.co_filename.startswith("<")


def _is_object(value: Value) -> bool:
    return isinstance(value, Instance) or _class_of(value) is not None


def _class_of(value: Value) -> type[Any] | None:
    """The class of an object, unless it is a leaf's or itself a class."""
    if isinstance(value, Instance):
        return value.cls.obj if isinstance(value.cls, Known) else None
    if not isinstance(value, Known):
        return None
    cls = type(value.obj)
    return None if issubclass(cls, type) or is_leaf(cls) else cls
