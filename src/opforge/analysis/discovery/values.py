"""What an expression may stand for, as far as reading can tell: small abstract values.

Two values with the same `key` are interchangeable. An expression has a tuple of candidates: the
values that reading could not rule out.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeGuard, TypeVar

from ...model import MISSING

# More candidates than any table of kernels has; beyond it, the rest becomes one unknown value.
_MOST_CANDIDATES = 256

_CONSTANTS = (str, int, float, bool, bytes, type(None))

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801  # used as `property` is
    """`functools.cached_property` without its lock, which costs more than most keys."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute = compute
        self.name = compute.__name__

    def __get__(self, owner: Any, cls: type[Any]) -> T:
        found = self.compute(owner)
        # Not through `__dict__`: once that exists, reading any attribute takes three times as long.
        setattr(owner, self.name, found)
        return found


class Value:
    """One thing that an expression may stand for; it never changes once made.

    The kinds made most often are not frozen dataclasses, which take three times as long to make.
    A value belongs to one reading, during which no code of the user's runs; it keeps what was
    found out about it.
    """

    # None until asked: whether a function that is given it may launch something through it, what
    # can be told of it as a callee before its arguments are known, how it is called, and whether
    # it is a method that can be read once for many objects.
    carrying: bool | None = None
    role: Any = None
    how: Any = None
    serves_many: bool | None = None
    # An existing container as an abstract one.
    opened: Any = MISSING

    @lazy
    def key(self) -> Hashable:
        return (type(self), *map(_part_key, self._parts()))

    @lazy
    def size(self) -> int:
        """How many values it consists of, itself included."""
        return 1 + sum(part.size for part in self._parts() if isinstance(part, _SIZED))

    def _parts(self) -> list[Any]:
        return [getattr(self, name) for name in self.__dataclass_fields__]  # type: ignore[attr-defined]


Values = tuple[Value, ...]


@dataclass(eq=False)
class Known(Value):
    """An existing object: a global, the content of a cell, a constant, or an attribute of one."""

    obj: Any

    @lazy
    def attributes(self) -> dict[str, Values]:
        """Those looked up so far."""
        return {}

    @lazy
    def key(self) -> Hashable:
        kind = type(self.obj)
        return ("constant", kind, self.obj) if kind in _CONSTANTS else id(self.obj)


@dataclass(unsafe_hash=True)
class Unknown(Value):
    """Something that reading cannot determine; a call of it is reported with `why`.

    Without `why`, a call of it is not reported: a tensor's method. The attributes of a `sticky`
    one are unknown for the same reason.
    """

    why: str = ""
    sticky: bool = False


UNKNOWN = Unknown()
NOTHING: Values = ()
ANY: Values = (UNKNOWN,)
# Most defaults are None. Unlike other values it belongs to all readings: nothing about it changes.
NONE: Values = (Known(None),)


@dataclass(eq=False)
class LaunchValue(Value):
    """`k[grid]` or `k.run`: calling it launches."""

    kernel: Any


@dataclass(eq=False)
class BoundMethod(Value):
    """A function with its first argument given: a method."""

    fn: Value
    self: Value

    @lazy
    def key(self) -> Hashable:
        return ("bound", self.fn.key, self.self.key)


@dataclass(eq=False)
class Partial(Value):
    """A callable with some arguments given."""

    fn: Value
    arguments: Arguments


@dataclass(eq=False)
class Sequence(Value):
    """A list, tuple, set or iterator: items in order, then any number of `rest`."""

    items: tuple[Values, ...] = ()
    rest: Values = NOTHING

    @lazy
    def key(self) -> Hashable:
        items = [v[0].key if len(v) == 1 else key_of(v) for v in self.items]
        return ("sequence", tuple(items), key_of(self.rest))

    @lazy
    def size(self) -> int:
        return 1 + _size_of(self.rest) + sum(map(_size_of, self.items))


@dataclass(eq=False)
class TableValue(Value):
    """A dict: the entries whose keys are known, and in `rest` the values under other keys."""

    items: dict[Hashable, Values] = field(default_factory=dict)
    rest: Values = NOTHING

    @lazy
    def key(self) -> Hashable:
        entries = tuple(
            [(k, v[0].key if len(v) == 1 else key_of(v)) for k, v in self.items.items()]
        )
        return ("table", entries, key_of(self.rest))

    @lazy
    def size(self) -> int:
        return 1 + _size_of(self.rest) + sum(map(_size_of, self.items.values()))


@dataclass(eq=False)
class Method(Value):
    """A method of a container: `table.get`."""

    base: Value
    name: str


@dataclass(unsafe_hash=True)
class OpSpace(Value):
    """`torch.ops.ns`."""

    name: str


@dataclass(unsafe_hash=True)
class OperatorValue(Value):
    """`torch.ops.ns.op`, registered or not."""

    name: str


@dataclass(eq=False)
class Super(Value):
    """`super()` in a method of `cls`."""

    cls: type[Any]
    self: Value


@dataclass(eq=False)
class Arguments:
    """A call's arguments; `star` and `double` hold what was unpacked, of unknown length."""

    positional: tuple[Values, ...] = ()
    keywords: dict[str, Values] = field(default_factory=dict)
    star: Values = NOTHING
    double: Values = NOTHING

    @lazy
    def size(self) -> int:
        """How many values there are, nested ones included."""
        return _size_of(self.every())

    @lazy
    def key(self) -> Hashable:
        named = tuple((k, key_of(v)) for k, v in sorted(self.keywords.items()))
        return (tuple(map(key_of, self.positional)), named, key_of(self.star), key_of(self.double))

    def after(self, first: Values) -> Arguments:
        """These, with one more in front."""
        return Arguments((first, *self.positional), self.keywords, self.star, self.double)

    def rest(self) -> Arguments:
        """These without the first."""
        return Arguments(self.positional[1:], self.keywords, self.star, self.double)

    def extend(self, more: Arguments) -> Arguments:
        """These, then those of the call, as `functools.partial` passes them."""
        # After an unpacked value of unknown length, positions are unknown too.
        later = NOTHING if not self.star else union(*more.positional)
        return Arguments(
            self.positional if self.star else (*self.positional, *more.positional),
            {**self.keywords, **more.keywords},
            union(self.star, later, more.star),
            union(self.double, more.double),
        )

    @property
    def first(self) -> Values:
        return self.positional[0] if self.positional else NOTHING

    def every(self) -> Iterable[Value]:
        groups = (*self.positional, *self.keywords.values(), self.star, self.double)
        return itertools.chain.from_iterable(groups)


_SIZED = (Value, Arguments)
NO_ARGUMENTS = Arguments()
UNKNOWN_ARGUMENTS = Arguments(star=ANY, double=ANY)
# What the caller of the function asked about may give, for any parameter.
GIVEN = Unknown("it is given by the caller")
GIVEN_ARGUMENTS = Arguments(star=(GIVEN,), double=(GIVEN,))


def _part_key(part: Any) -> Hashable:
    """What tells one part of a value from another: its content, or else its identity."""
    if isinstance(part, _SIZED):
        return part.key
    return part if isinstance(part, (str, bool)) else id(part)


def _size_of(values: Iterable[Value]) -> int:
    return sum(value.size for value in values)


KEY = operator.attrgetter("key")


def key_of(values: Values) -> Hashable:
    if len(values) == 1:
        return values[0].key
    return frozenset(map(KEY, values))


_ANY_KEY = UNKNOWN.key
_NONE_KEY = NONE[0].key


def union(*groups: Values) -> Values:
    """All candidates, in order and without duplicates."""
    first = NOTHING
    for group in groups:
        if not group or group is first:
            continue
        if first:
            break
        first = group
    else:
        return first
    seen: dict[Hashable, Value] = {}
    for group in groups:
        for value in group:
            key = value.key
            if key not in seen:
                seen[key] = value
    if _ANY_KEY in seen:
        # None does nothing that an unknown value does not.
        seen.pop(_NONE_KEY, None)
        if len(seen) == 1:
            return ANY
    found = tuple(seen.values())
    if len(found) > _MOST_CANDIDATES:
        return (*found[:_MOST_CANDIDATES], Unknown("there are too many candidates"))
    return found


def is_constant(value: Value) -> TypeGuard[Known]:
    return isinstance(value, Known) and type(value.obj) in _CONSTANTS


def constants(values: Values) -> list[Any] | None:
    """The constants that a key may be, or None where it may be anything else."""
    found = some_constants(values)
    return found if found and len(found) == len(values) else None


def some_constants(values: Values) -> list[Any]:
    """The constants among the candidates; there may be others."""
    return [v.obj for v in values if type(v) is Known and type(v.obj) in _CONSTANTS]


def known_arguments(args: tuple[Any, ...], keywords: dict[str, Any]) -> Arguments:
    """The arguments that an existing partial holds."""
    positional = tuple((Known(a),) for a in args)
    return Arguments(positional, {k: (Known(v),) for k, v in keywords.items()})
