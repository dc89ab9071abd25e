"""What each kind of expression may stand for, given what its parts may."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Hashable
from typing import Any

from ... import _compat
from .containers import ITEM, concatenated, elements, item, opened
from .frames import Frame, Instance, Local
from .machine import Machine
from .objects import is_instance
from .scopes import scope_of
from .values import (
    ANY,
    NOTHING,
    UNKNOWN,
    Arguments,
    Known,
    LaunchValue,
    Sequence,
    TableValue,
    Unknown,
    Value,
    Values,
    constants,
    some_constants,
    union,
)


def _attribute(machine: Machine, frame: Frame, node: ast.Attribute) -> Values:
    name = node.attr
    owner = node.value
    stored = NOTHING
    if type(owner) is ast.Name:
        owners = frame.names.get(owner.id) or machine.evaluate(frame, owner)
        if frame.parent is not None or frame.scope.attribute_stores:
            stored = _stored_attribute(machine, frame, owner.id, name)
    else:
        owners = machine.evaluate(frame, owner)
    if owners is ANY:
        return stored or ANY
    if name[:2] == "__" and not name.endswith("__"):
        name = _mangled(frame, name)
    if not stored and len(owners) == 1:
        value = owners[0]
        if value is UNKNOWN:
            return ANY
        # Most were looked up before.
        known = value.attributes.get(name) if type(value) is Known else None
        return machine.attribute(frame, value, name, node) if known is None else known
    found = [machine.attribute(frame, value, name, node) for value in owners]
    return union(*found, stored)


def _stored_attribute(machine: Machine, frame: Frame, owner: str, name: str) -> Values:
    """`self.k = value` in the same function as `self.k`."""
    around: Frame | None = frame
    while around is not None:
        stores = around.scope.attribute_stores
        if stores and (owner, name) in stores:
            return machine.stored(around, f"{owner}.{name}", stores[owner, name])
        around = around.parent
    return NOTHING


def _mangled(frame: Frame, name: str) -> str:
    path = frame.fn.__qualname__.split(".")
    return f"_{path[-2].lstrip('_')}{name}" if len(path) > 1 else name


def _subscript(machine: Machine, frame: Frame, node: ast.Subscript) -> Values:
    found = [_item(machine, frame, base, node) for base in machine.evaluate(frame, node.value)]
    return (found[0] if len(found) == 1 else union(*found)) or (ITEM,)


def _item(machine: Machine, frame: Frame, base: Value, node: ast.Subscript) -> Values:
    container = opened(base)
    if container is not None:
        if isinstance(node.slice, ast.Slice):
            return (_slice(container),)
        return item(container, machine.evaluate(frame, node.slice))
    if isinstance(base, Unknown):
        return (base if base.why else ITEM,)
    if isinstance(base, Known):
        kernel = _compat.kernels.launched_kernel(base.obj)
        if kernel is not None:
            return (LaunchValue(kernel),)
        if is_instance(base.obj, type) or base.obj is None:
            return (base,) if base.obj is not None else NOTHING
    return _own_item(machine, frame, base, node)


def _own_item(machine: Machine, frame: Frame, base: Value, node: ast.Subscript) -> Values:
    """`thing[grid]` where the object has its own `__getitem__`, or holds a kernel as `fn`."""
    if isinstance(base, Instance):
        for value in machine.attribute(frame, base, "fn", node):
            if isinstance(value, Known):
                kernel = _compat.kernels.launched_kernel(value.obj)
                if kernel is not None:
                    return (LaunchValue(kernel),)
    getters = machine.attribute(frame, base, "__getitem__", node)
    given = Arguments((machine.evaluate(frame, node.slice),))
    return union(*[machine.run(frame, getter, given, node) for getter in getters]) or (ITEM,)


def _slice(container: Sequence | TableValue) -> Value:
    if isinstance(container, TableValue):
        return UNKNOWN
    return Sequence(rest=union(*container.items, container.rest))


def _either(machine: Machine, frame: Frame, node: ast.IfExp) -> Values:
    return union(machine.evaluate(frame, node.body), machine.evaluate(frame, node.orelse))


def _bool(machine: Machine, frame: Frame, node: ast.BoolOp) -> Values:
    return union(*(machine.evaluate(frame, value) for value in node.values))


def _inner(machine: Machine, frame: Frame, node: ast.NamedExpr | ast.Await) -> Values:
    return machine.evaluate(frame, node.value)


def _lambda(_machine: Machine, frame: Frame, node: ast.Lambda) -> Values:
    return (Local(scope_of(node), frame),)


def _binary(machine: Machine, frame: Frame, node: ast.BinOp) -> Values:
    found = machine.operate(frame, node)
    if found:
        return found
    if not isinstance(node.op, (ast.Add, ast.BitOr)):
        return ANY
    left = machine.evaluate(frame, node.left)
    if left == ANY:
        return ANY
    return concatenated(left, machine.evaluate(frame, node.right))


def _text(machine: Machine, frame: Frame, node: ast.JoinedStr) -> Values:
    """An f-string of known parts, as in `getattr(ops, f"{kind}_kernel")`."""
    choices: list[list[str]] = []
    others = False
    for part in node.values:
        if isinstance(part, ast.Constant):
            choices.append([str(part.value)])
            continue
        if not isinstance(part, ast.FormattedValue) or part.format_spec is not None:
            return ANY
        values = machine.evaluate(frame, part.value)
        known = some_constants(values)
        if not known:
            return ANY
        choices.append([str(k) for k in known])
        others = others or len(known) < len(values)
    texts = ["".join(parts) for parts in itertools.islice(itertools.product(*choices), 64)]
    found = tuple(Known(text) for text in texts)
    return (*found, UNKNOWN) if others else found


def _sequence(machine: Machine, frame: Frame, node: ast.List | ast.Tuple | ast.Set) -> Values:
    return (Sequence(*listed_values(machine, frame, node.elts)),)


def listed_values(
    machine: Machine, frame: Frame, nodes: list[ast.expr]
) -> tuple[tuple[Values, ...], Values]:
    """What a display or a call lists, and what may follow it: some is unpacked in `a, *b, c`."""
    items: list[Values] = []
    rest: Values = NOTHING
    names = frame.names
    for element in nodes:
        kind = type(element)
        if kind is not ast.Starred:
            # Most are names seen before.
            if kind is ast.Name:
                name: str = element.id  # type: ignore[attr-defined]
                known = names.get(name)
                found = machine.lookup(frame, name) if known is None else known
            else:
                found = machine.evaluate(frame, element)
            if rest:
                rest = union(rest, found)
            else:
                items.append(found)
            continue
        found = machine.evaluate(frame, element.value)  # type: ignore[attr-defined]
        whole = opened(found[0]) if len(found) == 1 else None
        if isinstance(whole, Sequence) and not rest:
            items.extend(whole.items)
            rest = whole.rest
        else:
            rest = union(rest, elements(found) or ANY)
    return tuple(items), rest


def _table(machine: Machine, frame: Frame, node: ast.Dict) -> Values:
    items: dict[Hashable, Values] = {}
    rest: Values = NOTHING
    for key, value in zip(node.keys, node.values, strict=True):
        found = machine.evaluate(frame, value)
        known = constants(machine.evaluate(frame, key)) if key is not None else None
        if known is not None:
            items.update((k, found) for k in known)
        elif key is not None:
            rest = union(rest, found)
        else:
            for table in map(opened, found):
                if isinstance(table, TableValue):
                    items.update(table.items)
                    rest = union(rest, table.rest)
    return (TableValue(items, rest),)


def _comprehension(machine: Machine, frame: Frame, node: ast.ListComp) -> Values:
    return (Sequence(rest=machine.evaluate(frame.comprehension(node), node.elt)),)


def _table_comprehension(machine: Machine, frame: Frame, node: ast.DictComp) -> Values:
    inner = frame.comprehension(node)
    found = machine.evaluate(inner, node.value)
    known = constants(machine.evaluate(inner, node.key))
    if known is not None and len(found) == 1:
        return (TableValue(dict.fromkeys(known, found)),)
    return (TableValue(rest=found),)


HANDLERS: dict[type[ast.AST], Callable[[Machine, Frame, Any], Values]] = {
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.IfExp: _either,
    ast.BoolOp: _bool,
    ast.NamedExpr: _inner,
    ast.Await: _inner,
    ast.Lambda: _lambda,
    ast.BinOp: _binary,
    ast.JoinedStr: _text,
    ast.List: _sequence,
    ast.Tuple: _sequence,
    ast.Set: _sequence,
    ast.Dict: _table,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.DictComp: _table_comprehension,
}
