"""Resolve a function's annotations to real types, stringified ones included."""

from __future__ import annotations

import contextlib
import inspect
import types
import typing
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import BadSignature

Scope = Mapping[str, Any]

# What evaluating a bad annotation raises: an unknown name, `int +`, `torch.Tensr`, `Tensor[int]`.
_NOT_AN_ANNOTATION = (NameError, SyntaxError, AttributeError, TypeError)


def resolve_hints(
    fn: Callable[..., Any], signature: inspect.Signature, scope: Scope
) -> dict[str, Any]:
    """Parameter name (and "return") -> type; refuses a function that lacks annotations.

    `scope` holds the names visible where the function was decorated: a stringified annotation
    does not make the enclosing function keep them in a closure.
    """
    missing = [n for n, p in signature.parameters.items() if p.annotation is p.empty]
    if signature.return_annotation is inspect.Signature.empty:
        missing.append("return")
    if missing:
        raise BadSignature(
            f"no type annotation on {', '.join(missing)}",
            parameter=missing[0] if missing[0] != "return" else None,
            found=f"def {fn.__name__}{signature}",
            fix="annotate every parameter and the return value (-> None if nothing is returned)",
        )
    visible = {**scope, **_closure(fn)}
    try:
        return typing.get_type_hints(fn, localns=visible, include_extras=True)
    except _NOT_AN_ANNOTATION as error:
        raise unresolved(error, _who_says(signature, fn, visible)) from error


_class_hints: weakref.WeakKeyDictionary[type[Any], dict[str, Any]] = weakref.WeakKeyDictionary()


def resolve_class_hints(cls: type[Any], scope: Scope, parameter: str) -> dict[str, Any]:
    """Field name -> type, for a dataclass or a NamedTuple."""
    known = _class_hints.get(cls)
    if known is not None:
        return known
    try:
        # Without the scope first: then the answer is the same for every op and can be cached.
        known = _class_hints[cls] = typing.get_type_hints(cls, include_extras=True)
    except _NOT_AN_ANNOTATION:
        return _resolve_in_scope(cls, scope, parameter)
    return known


def _resolve_in_scope(cls: type[Any], scope: Scope, parameter: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, localns=dict(scope), include_extras=True)
    except _NOT_AN_ANNOTATION as error:
        raise unresolved(error, parameter) from error


def unresolved(error: Exception, parameter: str | None) -> BadSignature:
    return BadSignature(
        f"unresolved string annotation: {error}",
        parameter=parameter,
        fix="use a type that is imported or defined where the function is decorated "
        "(not only under `if TYPE_CHECKING:`)",
    )


def strip(annotation: Any) -> Any:
    """See through `Annotated`, `NewType` and `type X = ...` aliases, as deep as they go."""
    while True:
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            return annotation


def split_optional(annotation: Any) -> tuple[Any, bool]:
    """`X | None` -> (X, True); anything else unchanged. `A | B | None` -> (A | B, True)."""
    if not is_union(annotation):
        return annotation, False
    args = typing.get_args(annotation)
    rest = tuple(a for a in args if a is not type(None))
    if len(rest) == len(args):
        return annotation, False
    return (rest[0] if len(rest) == 1 else typing.Union[rest]), True  # noqa: UP007  # built from a tuple


def is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def spell(annotation: Any) -> str:
    """An annotation as the user would write it."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__qualname__
    return str(annotation).replace("typing.", "")


def user_scope(fn: types.FunctionType) -> dict[str, Any]:
    """Local names that `fn`'s annotations may use: those of the functions and classes around it.

    A function is decorated where it is defined, so the code around it is running: the nearest
    frame outside opforge, and the frames of the same module that called it. A function at module
    level has none.
    """
    if "." not in fn.__qualname__:
        return {}
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "opforge":
        frame = frame.f_back
    home = fn.__globals__
    scope: dict[str, Any] = {}
    while frame is not None and frame.f_globals is home:
        if frame.f_locals is not home:
            scope = {**frame.f_locals, **scope}
        frame = frame.f_back
    return scope


def _closure(fn: Callable[..., Any]) -> dict[str, Any]:
    inner = inspect.unwrap(fn)
    cells = getattr(inner, "__closure__", None) or ()
    names = inner.__code__.co_freevars if hasattr(inner, "__code__") else ()
    found = {}
    for name, cell in zip(names, cells, strict=False):
        # A name bound after the decoration has an empty cell.
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _who_says(
    signature: inspect.Signature, fn: Callable[..., Any], visible: dict[str, Any]
) -> str | None:
    """The first parameter whose annotation does not resolve by itself."""
    hints = {n: p.annotation for n, p in signature.parameters.items()}
    hints["return"] = signature.return_annotation
    for name, annotation in hints.items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            typing.get_type_hints(alone, fn.__globals__, visible)
        except _NOT_AN_ANNOTATION:
            return name
    return None
