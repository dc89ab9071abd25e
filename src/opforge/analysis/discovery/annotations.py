"""The few constants that a parameter's annotation allows, read without evaluating it."""

from __future__ import annotations

import ast
import types
import typing
from typing import Any

from ...model import MISSING
from .objects import is_instance, outside_value
from .scopes import Scope

_UNIONS = (typing.Union, types.UnionType)


def allowed_constants(
    scope: Scope, fn: types.FunctionType, parameter: str
) -> tuple[Any, ...] | None:
    """Those of a `Literal`, a `bool`, or a union of such; None where a parameter may be more.

    `fn` is the function whose names the annotation uses.
    """
    arguments = getattr(scope.node, "args", None)
    if not isinstance(arguments, ast.arguments):
        return None
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if argument.arg == parameter and argument.annotation is not None:
            return _of_text(argument.annotation, fn)
    return None


def _of_text(node: ast.expr, fn: types.FunctionType) -> tuple[Any, ...] | None:
    if isinstance(node, ast.Constant):
        return _of_text(_parsed(node.value), fn) if isinstance(node.value, str) else _of(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _joined([_of_text(node.left, fn), _of_text(node.right, fn)])
    if not isinstance(node, ast.Subscript):
        return _of(_named(node, fn))
    form = _named(node.value, fn)
    inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if form is typing.Literal:
        written = [n.value for n in inside if isinstance(n, ast.Constant)]
        return tuple(written) if len(written) == len(inside) else None
    if form is typing.Optional:
        return _joined([_of_text(inside[0], fn), (None,)])
    if form is typing.Union:
        return _joined([_of_text(n, fn) for n in inside])
    return _of_text(inside[0], fn) if form is typing.Annotated else None


def _of(obj: Any) -> tuple[Any, ...] | None:
    """The same of an annotation that exists as an object: `Mode = Literal["fast", "exact"]`."""
    if obj is None or obj is type(None):
        return (None,)
    if obj is bool:
        return (False, True)
    if type(obj).__module__ not in {"typing", "types"}:
        return None
    if typing.get_origin(obj) is typing.Literal:
        return typing.get_args(obj)
    if typing.get_origin(obj) in _UNIONS:
        return _joined([_of(one) for one in typing.get_args(obj)])
    return None


def _joined(parts: list[tuple[Any, ...] | None]) -> tuple[Any, ...] | None:
    known = [part for part in parts if part is not None]
    return tuple(c for part in known for c in part) if len(known) == len(parts) else None


def _named(node: ast.expr, fn: types.FunctionType) -> Any:
    """What `Mode` or `typing.Literal` stands for."""
    if isinstance(node, ast.Name):
        return outside_value(fn, node.id)
    if isinstance(node, ast.Attribute):
        owner = _named(node.value, fn)
        if is_instance(owner, types.ModuleType):
            return vars(owner).get(node.attr, MISSING)
    return MISSING


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return ast.Name("")
