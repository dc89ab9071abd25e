"""Functions that a method calls on `self`: `Other.bind(self)`, `bind(self)`.

They may store attributes, as the class's own methods do.
"""

from __future__ import annotations

import ast
import types
from typing import Any

from .bytecode import mentions
from .objects import class_attribute, is_instance, is_leaf
from .scopes import scope_of
from .source import read_source


def borrowed(method: types.FunctionType) -> list[types.FunctionType]:
    """The functions to which a method passes its own first argument as theirs."""
    candidates = _candidates(method) if method.__code__.co_argcount else {}
    source = read_source(method.__code__, method.__globals__) if candidates else None
    if source is None:
        return []
    first = method.__code__.co_varnames[0]
    return [
        candidates[path]
        for call, _ in scope_of(source.node).calls
        if call.args
        and isinstance(call.args[0], ast.Name)
        and call.args[0].id == first
        and (path := _path(call.func)) in candidates
    ]


def _candidates(method: types.FunctionType) -> dict[tuple[str, str], types.FunctionType]:
    """By global name and attribute, without parsing: most methods have none."""
    said = mentions(method.__code__)
    found: dict[tuple[str, str], types.FunctionType] = {}
    for name in said.globals_read:
        value = method.__globals__.get(name)
        if value is not None and _is_ours(value):
            found[name, ""] = value
        elif is_instance(value, type) and not is_leaf(value):
            for attribute in said.names:
                stored = class_attribute(value, attribute)
                if _is_ours(stored):
                    found[name, attribute] = stored
    return found


def _is_ours(value: Any) -> bool:
    return is_instance(value, types.FunctionType) and not is_leaf(value)


def _path(func: ast.expr) -> tuple[str, str]:
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
        return func.value.id, func.attr
    return (func.id, "") if isinstance(func, ast.Name) else ("", "")
