"""Backends that a decorator's wrapper may choose over the function it wraps, when it runs.

def wrapper(*args, **kwargs):
    for backend in registry:
        if backend.is_active():
            implementation = backend.find(name)
            return implementation(*args, **kwargs)
    return fn(*args, **kwargs)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from ..._compat.kernels import instance_dict
from .frames import Frame
from .machine import Machine
from .objects import describe, is_instance
from .scopes import Scope
from .values import BoundMethod, Known, Value


def step_of(frame: Frame, node: ast.Call) -> tuple[bool, int]:
    """Whether a call is an alternative, and how much deeper its callee lies.

    Both depend on the text alone, and are worked out once for all frames of a scope.
    """
    known = frame.scope.steps.get(id(node))
    if known is None:
        cost = 0 if _is_wrapper_step(frame, node.func) else 1
        known = frame.scope.steps[id(node)] = (_is_alternative(frame, node), cost)
    return known


def _is_alternative(frame: Frame, node: ast.Call) -> bool:
    """Whether a call gets all of a wrapper's arguments in place of what the wrapper wraps."""
    scope = frame.scope
    if scope.vararg is None or not _passes_all_on(scope, node) or not _looked_up(scope, node.func):
        return False
    others = [call for call, _ in scope.calls if call is not node and _passes_all_on(scope, call)]
    return _is_returned(scope, node) and any(
        _is_wrapper_step(frame, call.func) and _is_returned(scope, call) for call in others
    )


def condition(machine: Machine, frame: Frame, func: ast.expr, callee: Value) -> str:
    """When a wrapper chooses a callee, in words."""
    if isinstance(callee, BoundMethod) and isinstance(callee.self, Known):
        return f"{_class_name(callee.self.obj)} is active"
    if not isinstance(callee, Known):
        return "it is chosen"
    for name in _found_by(frame.scope, func):
        for owner in machine.lookup(frame, name):
            if isinstance(owner, Known) and _holds(owner.obj, callee.obj):
                return f"{_class_name(owner.obj)} is active"
    return f"{describe(callee.obj)} is chosen"


def _holds(owner: Any, obj: Any) -> bool:
    return any(value is obj for value in instance_dict(owner).values())


def _class_name(owner: Any) -> str:
    return describe(owner if is_instance(owner, type) else type(owner))


def _found_by(scope: Scope, func: ast.expr) -> Iterator[str]:
    """`backend` and `name` of `implementation = backend.find(name)`."""
    bindings = scope.bindings.get(func.id, ()) if isinstance(func, ast.Name) else ()
    for binding in bindings:
        yield from sorted(binding.names)


def _is_wrapper_step(frame: Frame, func: ast.expr) -> bool:
    """Whether a call only goes from a wrapper to what it wraps, which adds no depth."""
    if isinstance(func, ast.Name):
        if frame.parent is None:
            return func.id in frame.fn.__code__.co_freevars
        return any(func.id in around.parameters for around in frame.parent.outward())
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
        is_self = frame.scope.parameters[:1] == (func.value.id,)
        return is_self and frame.scope.name == "__call__"
    return False


def _passes_all_on(scope: Scope, call: ast.Call) -> bool:
    """`f(*args, **kwargs)`, with the parameters of the function around it."""
    given = [a.value.id for a in call.args if _is_starred_name(a)]  # type: ignore[attr-defined]
    named = [k.value.id for k in call.keywords if k.arg is None and isinstance(k.value, ast.Name)]
    return given == [scope.vararg] and (scope.kwarg is None or named == [scope.kwarg])


def _is_starred_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Starred) and isinstance(node.value, ast.Name)


def _looked_up(scope: Scope, func: ast.expr) -> bool:
    """Whether a callee is held in a variable of the function, or is an attribute of one."""
    while isinstance(func, ast.Attribute):
        func = func.value
    bindings = scope.bindings.get(func.id, ()) if isinstance(func, ast.Name) else ()
    return any(binding.how in {"value", "element"} for binding in bindings)


def _is_returned(scope: Scope, call: ast.Call) -> bool:
    """Whether a function returns what a call gives, directly or by a name."""
    names = [name for name, found in scope.bindings.items() if any(b.node is call for b in found)]
    return any(r is call or (isinstance(r, ast.Name) and r.id in names) for r in scope.returns)
