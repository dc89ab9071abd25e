"""Operators of objects: `a @ b`, `-a`, `a[i] = b`, where a class in the text defines what they do.

Most operators are of numbers and tensors. A function that neither mentions nor is given a class
or an object with operators of its own has none but those; in others, an object is told by its
name: it comes from outside, from the caller, or from a class called in the same function.
"""

from __future__ import annotations

import abc
import ast
import types
from typing import Any

from ..._compat.kernels import instance_dict
from .bytecode import mentions
from .evaluate import Evaluator
from .frames import Frame
from .objects import class_attribute, is_instance, is_leaf, is_set
from .scopes import Operation, operands
from .values import (
    ANY,
    NOTHING,
    Arguments,
    Bound,
    Instance,
    Known,
    Local,
    Unknown,
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
# For the left operand, and for the right one where the left has none.
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
_METHODS = frozenset(f"__{name}__" for name in _NAMES)


class Operations(Evaluator, abc.ABC):
    """Runs the methods behind operators."""

    def __init__(self) -> None:
        super().__init__()
        # By id, kept so that no other takes it.
        self.operating: dict[int, tuple[Any, bool]] = {}

    def operate(self, frame: Frame, node: Operation) -> Values:
        """What an operator gives, and nothing where no object of a class is among its operands."""
        if frame.has_operators is None:
            frame.has_operators = self.frame_has_operators(frame)
        if not frame.has_operators:
            return NOTHING
        if isinstance(node, ast.BinOp):
            if not any(self.may_give_object(frame, one) for one in operands(node)):
                return NOTHING
            name = _BINARY[type(node.op)]
            return self.between(frame, node, (node.left, node.right), (name, f"r{name}"))
        if isinstance(node, ast.AugAssign):
            name = _BINARY[type(node.op)]
            found = self.apply(frame, node, node.target, f"i{name}", node.value)
            sides = (node.target, node.value)
            return found or self.between(frame, node, sides, (name, f"r{name}"))
        if isinstance(node, ast.UnaryOp):
            return self.apply(frame, node, node.operand, _UNARY.get(type(node.op), ""))
        if isinstance(node, ast.Compare):
            return self.compare(frame, node)
        name = "setitem" if type(node.ctx) is ast.Store else "getitem"
        return self.apply(frame, node, node.value, name, node.slice)

    def frame_has_operators(self, frame: Frame) -> bool:
        given = [v for group in frame.parameters.values() if group is not ANY for v in group]
        if any(self.value_has_operators(v) for v in given if not isinstance(v, Unknown)):
            return True
        if frame.parent is not None:
            # Its function is that of the frame around it, and has the names of all nested ones.
            frame = frame.parent
            return frame.has_operators or self.frame_has_operators(frame)
        return self.fn_has_operators(frame.fn)

    def value_has_operators(self, value: Value) -> bool:
        if isinstance(value, Instance):
            if isinstance(value.cls, Local):
                return True
            # What `self` holds is made in `__init__`; asking all methods takes too long.
            init = class_attribute(value.cls.obj, "__init__")
            makes = is_instance(init, types.FunctionType) and self.fn_has_operators(init)
            return makes or self.has_operators(value.cls.obj)
        return isinstance(value, Known) and self.has_operators(value.obj)

    def fn_has_operators(self, fn: types.FunctionType) -> bool:
        known = self.operating.get(id(fn))
        if known is None:
            said = mentions(fn.__code__)
            values = [fn.__globals__.get(name) for name in said.globals_read]
            values += [cell.cell_contents for cell in fn.__closure__ or () if is_set(cell)]
            ours = [v for v in values if is_instance(v, types.ModuleType) and not is_leaf(v)]
            values += [instance_dict(m).get(name) for m in ours for name in said.names]
            found = said.has_classes or any(map(self.has_operators, values))
            known = self.operating[id(fn)] = (fn, found)
        return known[1]

    def has_operators(self, obj: Any) -> bool:
        """Whether a class has operators in a text of its own, or an object, or what it holds."""
        kind = type(obj)
        if kind is types.FunctionType or issubclass(kind, types.ModuleType) or obj is None:
            return False
        if not issubclass(kind, type):
            held = instance_dict(obj).values() if not is_leaf(kind) else ()
            return self.has_operators(kind) or any(
                self.has_operators(type(v)) for v in held if not is_instance(v, type)
            )
        known = self.operating.get(id(obj))
        if known is None:
            known = self.operating[id(obj)] = (obj, _has_operators(obj))
        return known[1]

    def compare(self, frame: Frame, node: ast.Compare) -> Values:
        found = []
        left = node.left
        for kind, right in zip(node.ops, node.comparators, strict=True):
            names = _COMPARISONS.get(type(kind))
            if names is not None:
                found.append(self.between(frame, node, (left, right), names))
            left = right
        return union(*found)

    def between(
        self,
        frame: Frame,
        node: Operation,
        sides: tuple[ast.expr, ast.expr],
        names: tuple[str, str],
    ) -> Values:
        """The left operand's method, or else the right one's."""
        left, right = sides
        found = self.apply(frame, node, left, names[0], right)
        return found or self.apply(frame, node, right, names[1], left)

    def apply(
        self,
        frame: Frame,
        node: Operation,
        owner: ast.expr,
        name: str,
        other: ast.expr | None = None,
    ) -> Values:
        """`owner.__name__(other)`, for the owners whose class has the method in a text."""
        found = []
        for value in self.operand(frame, owner):
            for method in self.method_of(value, f"__{name}__"):
                given = Arguments() if other is None else Arguments((self.evaluate(frame, other),))
                found.append(self.run(frame, method, given, node))
        return union(*found)

    def method_of(self, value: Value, name: str) -> Values:
        if isinstance(value, Instance) and isinstance(value.cls, Local):
            return self.class_member(value.cls, name, value)
        cls = _class_of(value)
        if cls is None or not _is_written(cls, name):
            return NOTHING
        return (Bound(Known(class_attribute(cls, name)), value),)

    def operand(self, frame: Frame, node: ast.expr) -> Values:
        """The objects that an operand may be."""
        if isinstance(node, ast.BinOp):
            return self.operate(frame, node)
        return self.evaluate(frame, node) if self.may_give_object(frame, node) else NOTHING

    def may_give_object(self, frame: Frame, node: ast.AST) -> bool:
        kind = type(node)
        if kind is ast.Name:
            return self.may_be_object(frame, node.id)  # type: ignore[attr-defined]
        if isinstance(node, ast.Call):
            return self.makes_object(frame, node)
        if isinstance(node, ast.BinOp):
            return any(self.may_give_object(frame, one) for one in operands(node))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            of_interest = self.interest.has(frame, node.value.id)
            return of_interest and any(map(_is_object, self.evaluate(frame, node)))
        return False

    def may_be_object(self, frame: Frame, name: str) -> bool:
        known = frame.objects.get(name)
        if known is None:
            # A name that its own value mentions is no reason by itself.
            frame.objects[name] = False
            known = self.interest.has(frame, name) and self.is_bound_to_object(frame, name)
            frame.objects[name] = known
        return known

    def is_bound_to_object(self, frame: Frame, name: str) -> bool:
        around: Frame | None = frame
        while around is not None:
            if name in around.parameters:
                return any(map(_is_object, around.parameters[name]))
            bindings = around.scope.bindings.get(name)
            if bindings is not None and name not in around.scope.elsewhere:
                home = around
                values = [b.node for b in bindings if b.how == "value"]
                return any(self.may_give_object(home, value) for value in values)
            around = around.parent
        return any(map(_is_object, self.lookup(frame, name)))

    def makes_object(self, frame: Frame, node: ast.Call) -> bool:
        """Whether a call makes an object of somebody's class, here or in what it returns."""
        if not isinstance(node.func, (ast.Name, ast.Attribute)):
            return False
        callees = self.evaluate(frame, node.func)
        if callees is ANY:
            return False
        return any(_is_class(v) for v in callees) or any(
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Name)
            and any(_is_class(v) for v in self.lookup(inner, value.func.id))
            for inner in self.outcome(frame, node).frames
            for value in inner.scope.returns
        )


def _has_operators(cls: type[Any]) -> bool:
    if is_leaf(cls):
        return False
    for base in type.__getattribute__(cls, "__mro__"):
        held = type.__getattribute__(base, "__dict__")
        # Most classes have none; going through a tensor's hundreds of names takes longest.
        if len(held) < len(_METHODS) and _METHODS.isdisjoint(held):
            continue
        for name in _METHODS:
            if name in held and _is_own(held[name]):
                return True
    return False


def _is_written(cls: type[Any], name: str) -> bool:
    return _is_own(class_attribute(cls, name))


def _is_own(stored: Any) -> bool:
    """Whether a method stands in somebody's text: a dataclass's `__eq__` is made up."""
    if type(stored) is not types.FunctionType or is_leaf(stored):
        return False
    return not stored.__code__.co_filename.startswith("<")


def _is_class(value: Value) -> bool:
    if isinstance(value, Local):
        return isinstance(value.scope.node, ast.ClassDef)
    return isinstance(value, Known) and is_instance(value.obj, type) and not is_leaf(value.obj)


def _is_object(value: Value) -> bool:
    return isinstance(value, Instance) or _class_of(value) is not None


def _class_of(value: Value) -> type[Any] | None:
    """The class of an object, unless it is a leaf's, or a function, a class or a module."""
    if isinstance(value, Instance):
        return value.cls.obj if isinstance(value.cls, Known) else None
    if not isinstance(value, Known):
        return None
    cls = type(value.obj)
    return None if issubclass(cls, type) or is_leaf(cls) else cls
