"""What a name may stand for, by Python's scoping."""

from __future__ import annotations

import ast
import sys

from ...model import MISSING
from .containers import elements, opened, stored, unpacked
from .frames import Call, CallOutcome, Frame, Instance, Local
from .interest import Interest, is_text
from .machine import Machine
from .objects import absolute_name, is_leaf, may_be_imported, outside_value
from .scopes import Binding, scope_of
from .values import (
    ANY,
    NOTHING,
    UNKNOWN_ARGUMENTS,
    Arguments,
    Known,
    Sequence,
    Unknown,
    Value,
    Values,
    union,
)


class NameResolver:
    """Looks names up in a frame, in those around it, and outside of the function."""

    def __init__(self, machine: Machine, interest: Interest) -> None:
        self.machine = machine
        self.interest = interest

    def find(self, frame: Frame, name: str) -> Values:
        """A name as the code of a frame sees it."""
        known = frame.names.get(name)
        if known is not None:
            return known
        if name in frame.scope.bindings and name not in frame.scope.elsewhere:
            return self._local(frame, name)
        around: Frame | None = frame
        while around is not None:
            scope = around.scope
            if (name in scope.bindings or name in around.parameters) and (
                # The functions in a class do not see its names.
                around is frame or not isinstance(scope.node, ast.ClassDef)
            ):
                here = around.names.get(name)
                here = self._local(around, name) if here is None else here
                if name not in scope.elsewhere:
                    return here
                return union(here, self._outer(around, name))
            if around.parent is None:
                frame.names[name] = self.outside(around, name)
            around = around.parent
        return frame.names[name]

    def outside(self, frame: Frame, name: str) -> Values:
        """A name that a function takes from its closure, its module or the builtins."""
        found = outside_value(frame.fn, name)
        if found is MISSING:
            return (Unknown(f"'{name}' is not bound yet", sticky=True),)
        values = (self.interest.known(found),)
        if name in frame.scope.item_stores:
            return self._after_stores(frame, name, values)
        return values

    def stored(self, frame: Frame, key: str, stores: list[ast.expr]) -> Values:
        """The union of what is stored; inside a stored value itself, what was found so far."""
        found = frame.names.get(key)
        if found is None:
            found = frame.names[key] = NOTHING
            for value in stores:
                found = frame.names[key] = union(found, self.machine.evaluate(frame, value))
        return found

    def _outer(self, frame: Frame, name: str) -> Values:
        parent = frame.parent
        return self.outside(frame, name) if parent is None else self.find(parent, name)

    def _local(self, frame: Frame, name: str) -> Values:
        scope, given = frame.scope, frame.parameters.get(name)
        if given is None:
            # Most were asked about in another frame of the function.
            roots, here = scope.roots.get(name), frame.interest
            if roots is None or here is None or name in roots:
                followed = self.interest.has(frame, name)
            else:
                followed = not roots.isdisjoint(here)
            if not followed and not is_text(scope, name):
                frame.names[name] = ANY
                return ANY
        # A name that its own value mentions is, inside it, what was found so far.
        found = frame.names[name] = given or NOTHING
        for binding in scope.bindings.get(name, ()):
            if binding.how == "value" and not binding.path:
                more = self.machine.evaluate(frame, binding.node)
            else:
                more = self._bound(frame, binding)
            found = frame.names[name] = union(found, more) if found else more
        if name in scope.item_stores:
            found = frame.names[name] = self._after_stores(frame, name, found)
        return found

    def _after_stores(self, frame: Frame, name: str, values: Values) -> Values:
        if all(opened(v) is None for v in values):
            return values
        extra: list[tuple[Values | None, Values]] = []
        for key, value in frame.scope.item_stores[name]:
            found = self.machine.evaluate(frame, value)
            if key is None:  # an append, written as a list, or `items += more`
                extra.append((None, elements(found)))
            else:
                extra.append((self.machine.evaluate(frame, key), found))
        return stored(values, extra)

    def _bound(self, frame: Frame, binding: Binding) -> Values:
        node = binding.node
        if binding.how == "value":
            return unpacked(self.machine.evaluate(frame, node), binding.path)
        if binding.how == "element":
            return unpacked(elements(self.machine.evaluate(frame, node)), binding.path)
        if binding.how == "enter":
            return unpacked(self.entered(frame, node), binding.path)
        if binding.how == "part":
            return elements(self.machine.evaluate(frame, node))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return self._decorated(frame, Local(scope_of(node), frame), node.decorator_list)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return _imported(frame, node)
        return ANY

    def entered(self, frame: Frame, node: ast.AST) -> Values:
        """What `with value as name` binds: what a generator yields, or `__enter__` returns."""
        found = []
        for value in self.machine.evaluate(frame, node):
            if isinstance(value, Sequence):
                found.append(elements((value,)))
            elif isinstance(value, Instance) or (
                isinstance(value, Known) and not is_leaf(value.obj)
            ):
                methods = self.machine.attribute(frame, value, "__enter__", node)
                found += [self.machine.run(frame, method, Arguments(), node) for method in methods]
                for method in self.machine.attribute(frame, value, "__exit__", node):
                    self.machine.run(frame, method, UNKNOWN_ARGUMENTS, node)
            else:
                found.append(ANY)
        return union(*found)

    def _decorated(self, frame: Frame, value: Value, decorators: list[ast.expr]) -> Values:
        """What a definition in a body binds; what its decorators run does not count."""
        values: Values = (value,)
        for decorator in reversed(decorators):
            call = Call(frame, Arguments((values,)), CallOutcome())
            for callee in self.machine.evaluate(frame, decorator):
                self.machine.call(call, callee)
            values = self.machine.results(call.outcome)
        return values


def _imported(frame: Frame, node: ast.Import | ast.ImportFrom) -> Values:
    """What an import inside a body binds, if the module is loaded; nothing is imported here."""
    alias = node.names[0]
    if isinstance(node, ast.Import):
        return _loaded(alias.name if alias.asname else alias.name.partition(".")[0])
    home = absolute_name(frame.fn, node.module or "", node.level) or ""
    module = sys.modules.get(home)
    if module is None:
        return _loaded(home)
    found = vars(module).get(alias.name, MISSING)
    return _loaded(f"{home}.{alias.name}") if found is MISSING else (Known(found),)


def _loaded(name: str) -> Values:
    module = sys.modules.get(name)
    if module is not None:
        return (Known(module),)
    return (
        (Unknown(f"'{name}' is not imported yet", sticky=True),) if may_be_imported(name) else ANY
    )
