"""What builtins and the standard library's containers return: some of them hold kernels."""

from __future__ import annotations

import collections
import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any

from ... import _compat
from .containers import elements, item, opened
from .frames import Call, CallOutcome, Frame, Instance
from .machine import Machine
from .objects import is_instance, is_leaf
from .values import (
    ANY,
    NOTHING,
    UNKNOWN,
    Arguments,
    Known,
    LaunchValue,
    Partial,
    Sequence,
    Super,
    TableValue,
    Unknown,
    Value,
    Values,
    some_constants,
    union,
)


def builtin_result(machine: Machine, frame: Frame, obj: Any, arguments: Arguments) -> Values | None:
    """What a call of a function or class returns, or None where the tables do not have it."""
    of_arguments = _OF_ARGUMENTS.get(obj)
    if of_arguments is not None:
        return of_arguments(arguments)
    of_frame = _OF_FRAME.get(obj)
    return None if of_frame is None else of_frame(machine, frame, arguments)


def has_result(obj: Any) -> bool:
    """Whether the tables say what a call of a function returns."""
    return obj in _OF_ARGUMENTS or obj in _OF_FRAME


def _getattr(machine: Machine, frame: Frame, arguments: Arguments) -> Values:
    owners, names, *default = (*arguments.positional, NOTHING, NOTHING)[
        : max(2, len(arguments.positional))
    ]
    known = some_constants(names)
    found = [
        machine.attribute(frame, owner, name, frame.scope.node)
        for owner in owners
        for name in known
        if isinstance(name, str)
    ]
    if not known or len(known) < len(names):
        why = Unknown("getattr with a name that is computed")
        found.append(tuple(why if _may_matter(owner) else UNKNOWN for owner in owners))
    if default:
        # A name that is missing now gives the default.
        found = [tuple(v for v in f if not isinstance(v, Unknown) or not v.sticky) for f in found]
    return union(*found, *default)


def _may_matter(owner: Value) -> bool:
    if isinstance(owner, Known):
        return not is_leaf(owner.obj)
    return isinstance(owner, Instance)


def _getitem(machine: Machine, frame: Frame, arguments: Arguments) -> Values:
    owners, keys, *_ = (*arguments.positional, ANY, ANY)
    found: list[Values] = []
    for owner in owners:
        container = opened(owner)
        kernel = _compat.kernels.launched_kernel(owner.obj) if isinstance(owner, Known) else None
        if container is not None:
            found.append(item(container, keys))
        elif kernel is not None:
            found.append((LaunchValue(kernel),))
        else:
            node = frame.scope.node
            getters = machine.attribute(frame, owner, "__getitem__", node)
            found += [machine.run(frame, g, Arguments((keys,)), node) for g in getters]
    return union(*found) or ANY


def _globals(_machine: Machine, frame: Frame, _arguments: Arguments) -> Values:
    return (Known(frame.fn.__globals__),)


def _super(machine: Machine, frame: Frame, arguments: Arguments) -> Values:
    """`super()`: the class is in the method's `__class__` cell, `self` its first argument."""
    *_, around = frame.outward()
    if len(arguments.positional) == 2:
        cells, owners = arguments.positional
    else:
        cells = machine.lookup(around, "__class__")
        first = around.scope.parameters[:1]
        owners = around.parameters.get(first[0], ANY) if first else ANY
    return tuple(
        Super(cls.obj, owner)
        for cls in cells
        for owner in owners
        if isinstance(cls, Known) and is_instance(cls.obj, type)
    )


def _map(machine: Machine, frame: Frame, arguments: Arguments) -> Values:
    if not arguments.positional:
        return ANY
    fns, *columns = arguments.positional
    call = Call(frame, Arguments(tuple(elements(column) for column in columns)), CallOutcome())
    for fn in fns:
        machine.call(call, fn)
    return (Sequence(rest=machine.results(call.outcome)),)


def _vars(arguments: Arguments) -> Values:
    known = [value.obj for value in arguments.first if isinstance(value, Known)]
    return tuple(Known(_compat.kernels.instance_dict(obj)) for obj in known) or ANY


def _partial(arguments: Arguments) -> Values:
    return tuple(Partial(fn, arguments.rest()) for fn in arguments.first) or ANY


def _type(arguments: Arguments) -> Values:
    if len(arguments.positional) != 1:
        return ANY
    found: list[Value] = []
    for value in arguments.first:
        if isinstance(value, Known):
            found.append(Known(type(value.obj)))
        elif isinstance(value, Instance):
            found.append(value.cls)
    return tuple(found) or ANY


def _zip(arguments: Arguments) -> Values:
    columns = tuple(elements(column) for column in arguments.positional)
    return (Sequence(rest=(Sequence(columns, arguments.star),)),)


def _enumerate(arguments: Arguments) -> Values:
    return (Sequence(rest=(Sequence((ANY, elements(arguments.first) or ANY)),)),)


def _chain(arguments: Arguments) -> Values:
    return (Sequence(rest=union(*(elements(a) for a in arguments.positional))),)


def _dict(arguments: Arguments) -> Values:
    items: dict[Any, Values] = {}
    rest: Values = arguments.double
    for value in (v for group in arguments.positional for v in group):
        container = opened(value)
        if isinstance(container, TableValue):
            items.update(container.items)
            rest = union(rest, container.rest)
        elif isinstance(container, Sequence):
            pairs = map(opened, elements((container,)))
            found = [p.items[1] for p in pairs if isinstance(p, Sequence) and len(p.items) > 1]
            rest = union(rest, *found)
    items.update(arguments.keywords)
    return (TableValue(items, rest),)


def _next(arguments: Arguments) -> Values:
    return union(elements(arguments.first), *arguments.positional[1:]) or ANY


def _extremum(arguments: Arguments) -> Values:
    alone = len(arguments.positional) == 1
    return union(*(elements(a) if alone else a for a in arguments.positional)) or ANY


def _same_elements(arguments: Arguments) -> Values:
    if not arguments.positional:
        return (Sequence(),)
    found: list[Value] = []
    for value in arguments.first:
        container = opened(value)
        if isinstance(container, Sequence):
            found.append(container)
        elif container is not None:
            found.append(Sequence(rest=elements((container,))))
    return tuple(found) or ANY


_OF_FRAME: dict[Any, Callable[[Machine, Frame, Arguments], Values]] = {
    getattr: _getattr,
    globals: _globals,
    operator.getitem: _getitem,
    super: _super,
    map: _map,
}
_OF_ARGUMENTS: dict[Any, Callable[[Arguments], Values]] = {
    vars: _vars,
    next: _next,
    min: _extremum,
    max: _extremum,
    functools.partial: _partial,
    staticmethod: lambda given: given.first or ANY,
    classmethod: lambda given: given.first or ANY,
    type: _type,
    zip: _zip,
    itertools.product: _zip,
    enumerate: _enumerate,
    filter: lambda given: _chain(given.rest()),
    itertools.chain: _chain,
    dict: _dict,
    collections.OrderedDict: _dict,
    collections.defaultdict: lambda given: _dict(given.rest()),
    **dict.fromkeys((iter, sorted, reversed, itertools.cycle), _same_elements),
    **dict.fromkeys((list, tuple, set, frozenset, collections.deque), _same_elements),
}
