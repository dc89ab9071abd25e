"""The names that the source of a function reads, with the attributes that it takes of them."""

from __future__ import annotations

import ast
from typing import NamedTuple


class Names(NamedTuple):
    """`x * config.FACTOR + tl.exp(y)` reads x, ("config", "FACTOR"), ("tl", "exp") and y.

    `assigned` are the names that the source also sets. Parameters are in neither. `imported` are
    the modules that it imports itself, as a Python function may.
    """

    read: tuple[tuple[str, ...], ...]
    assigned: frozenset[str]
    imported: tuple[str, ...]


def names_in(tree: ast.Module) -> Names:
    """The names in a module that consists of one function."""
    found = _Visitor()
    (function,) = tree.body
    assert isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
    args = function.args
    own = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    parameters = {arg.arg for arg in own if arg is not None}
    # Annotations and default values are what they were when the function was defined.
    for statement in function.body:
        found.visit(statement)
    read = sorted(chain for chain in found.read if chain[0] not in parameters)
    assigned = frozenset(found.assigned - parameters)
    return Names(tuple(read), assigned, tuple(sorted(found.imported)))


class _Visitor(ast.NodeVisitor):
    def __init__(self) -> None:
        self.read: set[tuple[str, ...]] = set()
        self.assigned: set[str] = set()
        self.imported: set[str] = set()

    def visit_arg(self, node: ast.arg) -> None:
        # Of a function inside.
        self.assigned.add(node.arg)

    def visit_Import(self, node: ast.Import) -> None:
        self.imported.update(alias.name for alias in node.names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.imported.add(f"{'.' * node.level}{node.module or ''}")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        taken: list[str] = []
        base: ast.expr = node
        while isinstance(base, ast.Attribute):
            taken.append(base.attr)
            base = base.value
        if isinstance(base, ast.Name):
            self.read.add((base.id, *reversed(taken)))
        else:
            self.visit(base)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.read.add((node.id,))
        else:
            self.assigned.add(node.id)
