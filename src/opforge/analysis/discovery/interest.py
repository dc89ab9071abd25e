"""Which names of a frame may lead to a kernel, so that the rest need not be evaluated.

Most statements of a host function compute shapes and make tensors. A name is of interest if it
may stand for a function, class, object or table of the user's, or if something of interest was
assigned to it; a call is of interest if it mentions such a name.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable
from typing import Any

from ...model import MISSING
from .frames import Frame
from .objects import outside_value
from .reach import carries
from .scopes import LAMBDA, OPERATORS
from .values import Known

# Builtins that give access to anything.
_DOORS = frozenset({"eval", "exec", "globals", "super", "vars", "__import__", OPERATORS, LAMBDA})
_BUILTINS = frozenset(map(id, vars(builtins).values()))
_TEXTS = (ast.Constant, ast.JoinedStr)


class Interest:
    """Remembers, for one reading, which global values are of interest."""

    def __init__(self) -> None:
        self.values: dict[int, Known] = {}

    def any_of(self, frame: Frame, names: Iterable[str]) -> bool:
        known = frame.interest
        for name in names:
            found = known.get(name)
            if found or (found is None and self.has(frame, name)):
                return True
        return False

    def has(self, frame: Frame, name: str) -> bool:
        """Whether a name, as a frame sees it, is of interest."""
        if name in _DOORS:
            return True
        around: Frame | None = frame
        while around is not None:
            known = around.interest.get(name)
            if known is not None:
                return known
            scope = around.scope
            if name in around.parameters or name in scope.bindings or around.parent is None:
                # A name that its own value mentions does not count by itself.
                around.interest[name] = False
                found = around.interest[name] = self._found(around, name)
                return found
            around = around.parent
        return False

    def _found(self, frame: Frame, name: str) -> bool:
        scope = frame.scope
        stored = scope.stored_names.get(name)
        if stored and self.any_of(frame, stored):
            return True
        given = frame.parameters.get(name)
        if given is not None:
            for value in given:
                if carries(value):
                    return True
        bindings = scope.bindings.get(name)
        for binding in bindings or ():
            if binding.how in {"define", "import"} or self.any_of(frame, binding.names):
                return True
        local = bindings is not None or given is not None
        if local and name not in scope.elsewhere:
            return False
        if frame.parent is not None:
            return self.has(frame.parent, name)
        value = outside_value(frame.fn, name)
        return value is MISSING or (id(value) not in _BUILTINS and carries(self.known(value)))

    def known(self, obj: Any) -> Known:
        """An object as a value: the same one throughout a reading, since values cache answers."""
        found = self.values.get(id(obj))
        if found is None:
            found = self.values[id(obj)] = Known(obj)
        return found


def is_text(bindings: Iterable[Any]) -> bool:
    """Whether a name is only ever a constant or an f-string, which are cheap to evaluate.

    Or one of several, as in `for name in ("q", "k")`.
    """
    return all(isinstance(b.node, _TEXTS) or _lists_texts(b.node) for b in bindings)


def _lists_texts(node: ast.AST) -> bool:
    return isinstance(node, (ast.Tuple, ast.List)) and all(
        isinstance(e, ast.Constant) for e in node.elts
    )
