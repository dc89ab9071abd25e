"""Which names of a frame may lead to a kernel, so that the rest need not be evaluated.

Most statements of a host function compute shapes and make tensors. A name is of interest if it
may stand for a function, class, object or table of the user's, or if something of interest was
assigned to it; a call is of interest if it mentions such a name.
"""

from __future__ import annotations

import ast
import builtins
import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...model import MISSING
from .frames import Frame
from .objects import is_leaf, outside_value
from .reach import any_carries, carries
from .scopes import LAMBDA, OPERATORS, Scope
from .values import ANY, NONE, Known, Unknown, Values

# Builtins that give access to anything.
_DOORS = frozenset({"eval", "exec", "globals", "super", "vars", "__import__", OPERATORS, LAMBDA})
_BUILTIN_NAMES = vars(builtins)
_BUILTINS = frozenset(map(id, _BUILTIN_NAMES.values()))
_TEXTS = (ast.Constant, ast.JoinedStr)


class Interest:
    """Remembers, for one reading, which global values are of interest."""

    def __init__(self) -> None:
        self.values: dict[int, Known] = {}
        self._outside: dict[int, _Outside] = {}

    def calls(self, frame: Frame) -> list[ast.Call]:
        """The calls of a frame that may launch, call an operator, or be lost."""
        scope = frame.scope
        if not scope.calls:
            return []
        roots = scope.call_roots
        if roots is None:
            outermost = frame.parent is None
            roots = scope.call_roots = [
                (node, None if _shows(scope, node) else roots_of(scope, names, outermost=outermost))
                for node, names in scope.calls
            ]
        here = frame.interest
        here = self.of(frame) if here is None else here
        found = scope.calls_by_interest.get(here)
        if found is None:
            found = scope.calls_by_interest[here] = [
                node for node, names in roots if names is None or not names.isdisjoint(here)
            ]
        return found

    def has(self, frame: Frame, name: str) -> bool:
        """Whether a name, as a frame sees it, is of interest."""
        if name in _DOORS:
            return True
        around = frame
        while True:
            scope, parent = around.scope, around.parent
            if parent is None or name in scope.parameters or name in scope.bindings:
                break
            around = parent
        roots = scope.roots.get(name, MISSING)
        if roots is MISSING:
            roots = roots_of(scope, (name,), outermost=parent is None)
        if roots is None:
            return True
        here = around.interest
        if not roots.isdisjoint(self.of(around) if here is None else here):
            return True
        # Only a function nested in it mentions the name.
        return name in roots and name not in scope.names and self._of_outside(around.fn, name)

    def of(self, frame: Frame) -> frozenset[str]:
        """The parameters of interest, and the names of interest that come from around a frame."""
        known = frame.interest
        if known is None:
            parent = frame.parent
            if parent is None:
                outside = self._outside_of(frame)
                around = outside.of_interest
                frame.names = {**outside.values, **frame.names}
            else:
                around = frozenset(n for n in frame.scope.outer if self.has(parent, n))
            parameters = frame.parameters.items()
            given = [
                n
                for n, values in parameters
                if values is not ANY
                and values is not NONE
                and (len(values) != 1 or type(values[0]) is not Unknown)
                and any_carries(values)
            ]
            known = frame.interest = around.union(given) if given else around
        return known

    def _outside_of(self, frame: Frame) -> _Outside:
        """What a function takes from outside, looked up once for all its frames."""
        fn = frame.fn
        known = self._outside.get(id(fn))
        if known is None:
            scope = frame.scope
            of_interest: list[str] = []
            values: dict[str, Values] = {}
            held, known_values = fn.__globals__, self.values
            free = fn.__code__.co_freevars
            bindings, item_stores = scope.bindings, scope.item_stores
            for name in scope.outer:
                if name in free:
                    value = outside_value(fn, name)
                elif name in held:
                    value = held[name]
                else:
                    value = _BUILTIN_NAMES.get(name, MISSING)
                if value is MISSING:
                    of_interest.append(name)
                    continue
                here = id(value)
                found = known_values.get(here)
                if found is None:
                    found = known_values[here] = Known(value)
                carrying = found.carrying
                if carrying is None:
                    carrying = here not in _BUILTINS and _carries_at_first(found)
                if carrying:
                    of_interest.append(name)
                if name not in bindings and name not in item_stores:
                    values[name] = (found,)
            known = self._outside[id(fn)] = _Outside(fn, frozenset(of_interest), values)
        return known

    def _of_outside(self, fn: types.FunctionType, name: str) -> bool:
        value = outside_value(fn, name)
        return value is MISSING or (id(value) not in _BUILTINS and carries(self.known(value)))

    def known(self, obj: Any) -> Known:
        """An object as a value: the same one throughout a reading, since values cache answers."""
        found = self.values.get(id(obj))
        if found is None:
            found = self.values[id(obj)] = Known(obj)
        return found


@dataclass(eq=False, slots=True)
class _Outside:
    """What one function takes from outside; it is kept, so that no other takes its id."""

    fn: types.FunctionType
    of_interest: frozenset[str]
    values: dict[str, Values]


def _carries_at_first(value: Known) -> bool:
    # Most are functions of the user's.
    if type(value.obj) is types.FunctionType and not is_leaf(value.obj):
        value.carrying = True
        return True
    return carries(value)


def _shows(scope: Scope, node: ast.Call) -> bool:
    """Whether the text of a call alone makes it one of interest."""
    func = node.func
    if type(func) is ast.Name:
        return func.id in scope.parameters
    return type(func) is ast.Subscript or looks_like_run(node)


def looks_like_run(node: ast.Call) -> bool:
    """`something.run(..., grid=...)`."""
    if type(node.func) is not ast.Attribute or node.func.attr != "run":
        return False
    return any(keyword.arg == "grid" for keyword in node.keywords)


def roots_of(scope: Scope, names: Iterable[str], *, outermost: bool) -> frozenset[str] | None:
    """Where the values of names come from: parameters, and names from around the scope.

    None where they are of interest by themselves. It depends on the text alone, and is worked out
    once for each name.
    """
    found: set[str] = set()
    for name in names:
        roots = scope.roots.get(name, MISSING)
        if roots is MISSING:
            roots = scope.roots[name] = _roots_of(scope, name, outermost=outermost)
        if roots is None:
            return None
        found |= roots
    return frozenset(found)


def _roots_of(scope: Scope, name: str, *, outermost: bool) -> frozenset[str] | None:
    if name not in scope.bindings and name not in scope.stored_names and name not in _DOORS:
        # Most are parameters, or come from around the scope.
        return frozenset((name,))
    roots: set[str] = set()
    seen = {name}
    queue = [name]
    for one in queue:
        known = scope.roots.get(one, MISSING)
        if known is not MISSING:
            if known is None:
                return None
            roots |= known
            continue
        if one in _DOORS:
            return None
        bindings = scope.bindings.get(one)
        given = one in scope.parameters
        local = given or bindings is not None
        if given or not local or one in scope.elsewhere:
            roots.add(one)
        new: set[str] = set()
        if local or outermost:
            new.update(scope.stored_names.get(one, ()))
        for binding in bindings or ():
            if binding.how in {"define", "import"}:
                return None
            new.update(binding.names)
        new -= seen
        seen |= new
        queue += new
    return frozenset(roots)


def is_text(scope: Scope, name: str) -> bool:
    """Whether a name is only ever a constant or an f-string, which are cheap to evaluate.

    Or one of several, as in `for name in ("q", "k")`.
    """
    known = scope.texts.get(name)
    if known is None:
        bindings = scope.bindings.get(name, ())
        known = all(isinstance(b.node, _TEXTS) or _lists_texts(b.node) for b in bindings)
        scope.texts[name] = known
    return known


def _lists_texts(node: ast.AST) -> bool:
    return isinstance(node, (ast.Tuple, ast.List)) and all(
        isinstance(e, ast.Constant) for e in node.elts
    )
