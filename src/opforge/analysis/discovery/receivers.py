"""Whether a method can be read once for several objects that it is called on.

for backend in backends:
    backend.verify(name)

Read with all backends as `self`, `verify` finds what it would with each of them, as long as no two
values that come from `self` meet: in `self.launch(self.kernel)`, one backend would launch
another's kernel.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from .identity import cached_by_identity
from .scopes import LAMBDA, Scope, operands

# Gives what comes from `self` without mentioning it.
_SUPER = "super"


def serves_many(scope: Scope) -> bool:
    """Whether no two values that come from a method's first parameter meet in its text."""
    return _serves_many(scope.node, scope)


@cached_by_identity
def _serves_many(_node: ast.AST, scope: Scope) -> bool:
    if not scope.positional or scope.comprehensions or LAMBDA in scope.names:
        return False
    first = scope.positional[0]
    if any(b.how == "define" for bindings in scope.bindings.values() for b in bindings):
        return False
    if any(owner == first for owner, _ in scope.attribute_stores):
        return False
    derived = _derived(scope, first)
    return all(_meeting(parts, derived) < 2 for parts in _places(scope))


def _derived(scope: Scope, first: str) -> set[str]:
    """The names whose values may come from a parameter."""
    found = {first, _SUPER}
    before = 0
    while before != len(found):
        before = len(found)
        for name, bindings in scope.bindings.items():
            if any(_mentions(binding.node, found) for binding in bindings):
                found.add(name)
        for name, stored in scope.stored_names.items():
            if not found.isdisjoint(stored):
                found.add(name)
    return found


def _places(scope: Scope) -> Iterator[Iterable[ast.AST]]:
    """Where values meet: each time the parts of which one value is made."""
    for call, _ in scope.calls:
        yield (call.func, *call.args, *[keyword.value for keyword in call.keywords])
    for operation in scope.operations:
        if isinstance(operation, (ast.BinOp, ast.Compare, ast.UnaryOp)):
            yield operands(operation)
        else:
            yield ast.iter_child_nodes(operation)
    for stores in scope.item_stores.values():
        for key, value in stores:
            yield (value,) if key is None else (key, value)


def _meeting(parts: Iterable[ast.AST], derived: set[str]) -> int:
    """How many parts mention one of the names."""
    return sum(_mentions(part, derived) for part in parts)


def _mentions(node: ast.AST, names: set[str]) -> bool:
    """Whether the value of an expression comes from a name."""
    stack = [node]
    while stack:
        one = stack.pop()
        if isinstance(one, ast.Name):
            if one.id in names:
                return True
        elif isinstance(one, ast.IfExp):
            stack += one.body, one.orelse
        elif not isinstance(one, ast.Compare):  # which gives a truth value
            stack += ast.iter_child_nodes(one)
    return False
