"""Items, elements and methods of containers, both existing ones and those in the code read."""

from __future__ import annotations

import collections
import itertools
import types
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ... import _compat
from ...model import MISSING
from .objects import is_instance, is_module_instance
from .values import (
    ANY,
    NOTHING,
    Known,
    LaunchValue,
    Method,
    Sequence,
    TableValue,
    Unknown,
    Value,
    Values,
    constants,
    union,
)

# More members than any table of kernels has; the rest of a long list of numbers is ignored.
MOST_MEMBERS = 512

ITEM = Unknown("what it holds is known only when it runs")
# A registry to be filled later: what it will hold may have methods that launch.
EMPTY = Unknown("the table it is taken from is still empty", sticky=True)

SEQUENCES = (list, tuple, set, frozenset, collections.deque)


def opened(value: Value) -> Sequence | TableValue | None:
    """An existing container as an abstract one, or None where the value is not a container."""
    kind = type(value)
    if kind is Sequence or kind is TableValue:
        return value  # type: ignore[return-value]
    if not isinstance(value, Known):
        return None
    if value.opened is MISSING:
        value.opened = _opened(value.obj)
    found: Sequence | TableValue | None = value.opened
    return found


def _opened(obj: Any) -> Sequence | TableValue | None:
    kind = type(obj)
    if kind is types.FunctionType or kind is types.ModuleType or kind is type:
        return None
    if kind is types.MappingProxyType:
        return _table(obj.items())
    if issubclass(kind, dict):
        return _table(dict.items(obj))
    if issubclass(kind, SEQUENCES):
        members = tuple(itertools.islice(type(obj).__iter__(obj), MOST_MEMBERS))
        return Sequence(tuple((Known(m),) for m in members))
    held = _compat.kernels.instance_dict(obj)
    # In this order, because UserDict is an abstract class, and `issubclass` of those is slow.
    if isinstance(held.get("data"), dict) and is_instance(obj, collections.UserDict):
        return _table(held["data"].items())
    modules = held.get("_modules")
    if is_module_instance(obj) and isinstance(modules, dict):
        return _modules(obj, modules)
    return None


def _table(items: Iterable[tuple[Any, Any]]) -> TableValue:
    some = itertools.islice(items, MOST_MEMBERS)
    return TableValue({_table_key(key): (Known(member),) for key, member in some})


_CONSTANT_KEYS = (str, int, float, bytes, type(None))


@dataclass(frozen=True)
class _Other:
    """A key that is not a constant: it is never looked up, and its id keeps it distinct."""

    identity: int


def _table_key(key: Any) -> Hashable:
    """A dict's key as a table has it: a constant, or a tuple of constants and others."""
    if type(key) is tuple:
        return tuple(map(_table_key, key))
    return key if is_instance(key, _CONSTANT_KEYS) else _Other(id(key))


def _modules(obj: Any, modules: dict[str, Any]) -> Sequence | TableValue | None:
    if is_instance(obj, torch.nn.ModuleDict):
        return _table(modules.items())
    if is_instance(obj, (torch.nn.ModuleList, torch.nn.Sequential)):
        return Sequence(tuple((Known(m),) for m in modules.values()))
    return None


def elements(values: Values) -> Values:
    """What a loop over a value may yield."""
    found: list[Values] = []
    for value in values:
        container = opened(value)
        if container is None:
            found.append((ITEM,))
        elif isinstance(container, TableValue):
            found.extend(_key_values(key) for key in container.items)
            found.append(ANY)
        else:
            found.append(union(*container.items, container.rest))
    return found[0] if len(found) == 1 else union(*found)


def table_values(container: Sequence | TableValue) -> Values:
    members = container.items.values() if isinstance(container, TableValue) else container.items
    return union(*members, container.rest)


def item(container: Sequence | TableValue, keys: Values) -> Values:
    """`container[key]`; all members where the key is not known."""
    known = constants(keys)
    if known is None:
        if (
            isinstance(container, TableValue)
            and keys
            and all(isinstance(k, Sequence) for k in keys)
        ):
            return _by_parts(container, keys)
        return table_values(container) or _missing(container)
    if isinstance(container, TableValue):
        found = [union(container.items.get(key, NOTHING), container.rest) for key in known]
    else:
        found = [position(container, key) for key in known]
    return union(*found) or _missing(container)


def _missing(container: Sequence | TableValue) -> Values:
    is_empty = isinstance(container, TableValue) and not container.items and not container.rest
    return (EMPTY if is_empty else ITEM,)


def _by_parts(table: TableValue, keys: Values) -> Values:
    """`registry[op, backend]` where only some parts of the key are known."""
    found = [
        values
        for entry, values in table.items.items()
        if not isinstance(entry, tuple) or any(_may_equal(key, entry) for key in keys)
    ]
    return union(*found, table.rest) or _missing(table)


def _may_equal(key: Value, entry: tuple[Hashable, ...]) -> bool:
    if not isinstance(key, Sequence) or key.rest:
        return True
    if len(key.items) != len(entry):
        return False
    for values, part in zip(key.items, entry, strict=True):
        known = constants(values)
        if known is not None and not isinstance(part, _Other) and part not in known:
            return False
    return True


def position(container: Sequence, index: Any) -> Values:
    if not isinstance(index, int):
        return table_values(container)
    if index < 0 and not container.rest:
        index += len(container.items)
    if 0 <= index < len(container.items):
        return container.items[index]
    if index < 0:
        return table_values(container)
    return container.rest


def unpacked(values: Values, path: tuple[int | None, ...]) -> Values:
    """What the target at a path of an unpacking gets."""
    for step in path:
        found: list[Values] = []
        for value in values:
            container = opened(value)
            if container is None:
                found.append(ANY)
            elif step is None:
                found.append((Sequence(rest=table_values(container)),))
            elif isinstance(container, TableValue):
                found.append(elements((container,)))
            else:
                found.append(position(container, step))
        values = found[0] if len(found) == 1 else union(*found)
    return values


def concatenated(left: Values, right: Values) -> Values:
    """`a + b` and `a | b`."""
    found: list[Values] = []
    for a, b in itertools.islice(itertools.product(left, right), 16):
        first, second = opened(a), opened(b)
        if isinstance(first, Sequence) and isinstance(second, Sequence):
            if first.rest:
                rest = union(first.rest, *second.items, second.rest)
                found.append((Sequence(first.items, rest),))
            else:
                found.append((Sequence((*first.items, *second.items), second.rest),))
        elif isinstance(first, TableValue) and isinstance(second, TableValue):
            merged = {**first.items, **second.items}
            found.append((TableValue(merged, union(first.rest, second.rest)),))
        elif isinstance(a, Known) and isinstance(b, Known):
            texts = is_instance(a.obj, str) and is_instance(b.obj, str)
            found.append((Known(a.obj + b.obj),) if texts else ANY)
        else:
            found.append(ANY)
    return union(*found)


def stored(values: Values, extra: list[tuple[Values | None, Values]]) -> Values:
    """A container's candidates after `table[key] = value` and `items.append(value)`."""
    found: list[Values] = []
    for value in values:
        container = opened(value)
        if container is None:
            found.append((value,))
        elif isinstance(container, TableValue):
            found.append((_filled(container, extra),))
        else:
            late = union(container.rest, *(v for _, v in extra))
            found.append((Sequence(container.items, late),))
    return union(*found)


def _filled(table: TableValue, extra: list[tuple[Values | None, Values]]) -> TableValue:
    items, rest = dict(table.items), table.rest
    for keys, values in extra:
        known = constants(keys) if keys is not None else None
        if known is None:
            rest = union(rest, values)
        else:
            for key in known:
                items[key] = union(items.get(key, NOTHING), values)
    return TableValue(items, rest)


_TAKES = frozenset({"get", "pop", "setdefault", "popitem", "popleft", "__getitem__"})
_CONTAINER_METHODS = _TAKES | {
    "values", "items", "keys", "copy", "append", "extend", "add", "insert", "update", "index",
    "count", "clear", "remove", "discard", "reverse", "sort", "move_to_end", "appendleft",
}  # fmt: skip


def container_method(value: Value, name: str) -> Value | None:
    """`table.get` of a container, as a value for `method_result`."""
    if name in _CONTAINER_METHODS and opened(value) is not None:
        return Method(value, name)
    return None


def method_result(method: Method, positional: tuple[Values, ...]) -> Values:
    container = opened(method.base)
    if container is None:  # a kernel's `__getitem__`
        assert isinstance(method.base, Known)
        return (LaunchValue(method.base.obj),)
    if method.name == "values":
        return (Sequence(rest=table_values(container)),)
    if method.name == "keys":
        return (Sequence(rest=elements((container,))),)
    if method.name == "items" and isinstance(container, TableValue):
        pairs = [(Sequence((_key_values(k), v)),) for k, v in container.items.items()]
        rest = (Sequence((ANY, container.rest)),) if container.rest else NOTHING
        return (Sequence(tuple(pairs), rest),)
    if method.name == "copy":
        return (container,)
    if method.name in _TAKES:
        found = item(container, positional[0]) if positional else table_values(container)
        if len(positional) > 1:
            found = tuple(v for v in found if v is not ITEM and v is not EMPTY)
        return union(found, *positional[1:])
    return (Known(None),)


def _key_values(key: Hashable) -> Values:
    if is_instance(key, tuple):
        return (Sequence(tuple(map(_key_values, key))),)
    return ANY if isinstance(key, _Other) else (Known(key),)
