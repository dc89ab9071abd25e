"""Modules that a function looks up in `sys.modules` by names that its text shows.

def is_cached():
    return getattr(sys.modules.get("mylib.flags"), "CACHED", True)

`sys.modules` gives access to anything, unless every use of it is such a lookup.
"""

from __future__ import annotations

import ast
import types
from dataclasses import dataclass
from typing import Any

from .identity import cached_by_identity
from .source import read_source


@dataclass(frozen=True)
class Lookups:
    """The modules looked up, and the attributes that `getattr` reads."""

    modules: frozenset[str]
    attributes: frozenset[str]


@cached_by_identity
def lookups(code: types.CodeType, module: dict[str, Any]) -> Lookups | None:
    """What a function looks up, or None where its text does not show it."""
    source = read_source(code, module)
    return None if source is None else _lookups(source.node)


def _lookups(root: ast.AST) -> Lookups | None:
    modules: set[str] = set()
    attributes: set[str] = set()
    # What a lookup consists of; the same anywhere else could be used for anything.
    shown: set[ast.AST] = set()
    for node in ast.walk(root):
        if isinstance(node, ast.Call):
            if _is_name(node.func, "getattr") and len(node.args) > 1:
                attribute = _text(node.args[1])
                if attribute is None:
                    return None
                attributes.add(attribute)
                shown.add(node.func)
            elif isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
                _note(node.func.value, node.args[0], modules, shown)
        elif isinstance(node, ast.Subscript):
            _note(node.value, node.slice, modules, shown)
    hidden = any(_gives_access(node) and node not in shown for node in ast.walk(root))
    return None if hidden else Lookups(frozenset(modules), frozenset(attributes))


def _gives_access(node: ast.AST) -> bool:
    if isinstance(node, ast.alias):
        return "sys" in {node.name, node.asname}
    return isinstance(node, ast.Name) and node.id in {"sys", "modules", "getattr"}


def _note(owner: ast.expr, key: ast.expr, modules: set[str], shown: set[ast.AST]) -> None:
    """Note `sys.modules`, if the owner is that, with a key that the text shows."""
    name = _text(key)
    if name is None or not isinstance(owner, ast.Attribute) or owner.attr != "modules":
        return
    if _is_name(owner.value, "sys"):
        modules.add(name)
        shown.add(owner.value)


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _text(node: ast.expr) -> str | None:
    known = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if known else None  # type: ignore[attr-defined]
