"""What an expression may stand for, as far as reading can tell: small abstract values.

A value's `key` tells it from others; values with one key are interchangeable. An expression has
a tuple of candidates, none of them excluded by what was read.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .frames import Frame
    from .scopes import Scope

# More candidates than a table of kernels has; past it, values are dropped for an unknown one.
MOST_CANDIDATES = 256

_CONSTANTS = (str, int, float, bool, bytes, type(None))


class Value:
    """One thing that an expression may stand for."""

    __slots__ = ()
    key: Hashable


Values = tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Known(Value):
    """An object that exists: a global, a cell's content, a constant, an attribute of such."""

    obj: Any

    @functools.cached_property
    def key(self) -> Hashable:  # type: ignore[override]
        kind = type(self.obj)
        return ("constant", kind, self.obj) if kind in _CONSTANTS else id(self.obj)


@dataclass(frozen=True)
class Unknown(Value):
    """Something that reading does not give; `why` is said where it is called.

    Without `why`, a call is not worth a word: a method of a tensor. A `sticky` one makes its
    attributes unknown for the same reason.
    """

    why: str = ""
    sticky: bool = False

    @functools.cached_property
    def key(self) -> Hashable:  # type: ignore[override]
        return self


UNKNOWN = Unknown()
NOTHING: Values = ()
ANY: Values = (UNKNOWN,)


@dataclass(frozen=True, eq=False)
class Launch(Value):
    """`k[grid]` or `k.run`: calling it launches."""

    kernel: Any

    @functools.cached_property
    def key(self) -> Hashable:  # type: ignore[override]
        return ("launch", id(self.kernel))


@dataclass(frozen=True, eq=False)
class Bound(Value):
    """A function with its first argument given: a method."""

    fn: Value
    self: Value

    @functools.cached_property
    def key(self) -> Hashable:  # type: ignore[override]
        return ("bound", self.fn.key, self.self.key)


@dataclass(frozen=True, eq=False)
class Partial(Value):
    """A callable with some arguments given."""

    fn: Value
    arguments: Arguments

    @functools.cached_property
    def key(self) -> Hashable:  # type: ignore[override]
        return ("partial", self.fn.key, self.arguments.key)


@dataclass(frozen=True, eq=False)
class Local(Value):
    """A function, lambda or class that the code being read defines."""

    scope: Scope
    frame: Frame

    @functools.cached_property
    def key(self) -> Hashable:  # type: ignore[override]
        return ("local", id(self.scope), id(self.frame))


@dataclass(frozen=True, eq=False)
class Instance(Value):
    """An object that the code being read makes, or `self` of a method read by itself."""

    cls: Known | Local
    arguments: Arguments

    @functools.cached_property
    def key(self) -> Hashable:  # type: ignore[override]
        return ("instance", self.cls.key, self.arguments.key)


@dataclass(frozen=True, eq=False)
class Sequence(Value):
    """A list, tuple, set or iterator: items in order, then any number of `rest`."""

    items: tuple[Values, ...] = ()
    rest: Values = NOTHING

    @functools.cached_property
    def key(self) -> Hashable:  # type: ignore[override]
        return ("sequence", tuple(map(key_of, self.items)), key_of(self.rest))


@dataclass(frozen=True, eq=False)
class Table(Value):
    """A dict: entries whose key is known, and values under other keys."""

    items: dict[Hashable, Values] = field(default_factory=dict)
    rest: Values = NOTHING

    @functools.cached_property
    def key(self) -> Hashable:  # type: ignore[override]
        entries = tuple((k, key_of(v)) for k, v in self.items.items())
        return ("table", entries, key_of(self.rest))


@dataclass(frozen=True, eq=False)
class Method(Value):
    """A method of a container: `table.get`."""

    base: Value
    name: str

    @functools.cached_property
    def key(self) -> Hashable:  # type: ignore[override]
        return ("method", self.base.key, self.name)


@dataclass(frozen=True)
class OpSpace(Value):
    """`torch.ops.ns`."""

    name: str

    @functools.cached_property
    def key(self) -> Hashable:  # type: ignore[override]
        return self


@dataclass(frozen=True)
class Operator(Value):
    """`torch.ops.ns.op`, registered or not."""

    name: str

    @functools.cached_property
    def key(self) -> Hashable:  # type: ignore[override]
        return self


@dataclass(frozen=True, eq=False)
class Super(Value):
    """`super()` in a method of `cls`."""

    cls: type[Any]
    self: Value

    @functools.cached_property
    def key(self) -> Hashable:  # type: ignore[override]
        return ("super", id(self.cls), self.self.key)


@dataclass(frozen=True, eq=False)
class Context(Value):
    """The `ctx` that `forward` fills and `backward` reads."""

    writers: tuple[Frame, ...]

    @functools.cached_property
    def key(self) -> Hashable:  # type: ignore[override]
        return ("context", tuple(map(id, self.writers)))


@dataclass(frozen=True)
class Maker(Value):
    """`triton.autotune(...)`: what it makes of a kernel exists only when the function runs."""

    @functools.cached_property
    def key(self) -> Hashable:  # type: ignore[override]
        return self


@dataclass(frozen=True, eq=False)
class Arguments:
    """A call's arguments; `star` and `double` are what was unpacked, its length unknown."""

    positional: tuple[Values, ...] = ()
    keywords: dict[str, Values] = field(default_factory=dict)
    star: Values = NOTHING
    double: Values = NOTHING

    @functools.cached_property
    def size(self) -> int:
        """How many values there are, those inside others counted."""
        return sum(map(size_of, self.every()))

    @functools.cached_property
    def key(self) -> Hashable:
        named = tuple((k, key_of(v)) for k, v in sorted(self.keywords.items()))
        return (tuple(map(key_of, self.positional)), named, key_of(self.star), key_of(self.double))

    def after(self, first: Values) -> Arguments:
        """These, with one more in front."""
        return Arguments((first, *self.positional), self.keywords, self.star, self.double)

    def extend(self, more: Arguments) -> Arguments:
        """These, then those of the call: what `functools.partial` does."""
        # Behind an unpacked value of unknown length, positions are unknown too.
        later = NOTHING if not self.star else union(*more.positional)
        return Arguments(
            self.positional if self.star else (*self.positional, *more.positional),
            {**self.keywords, **more.keywords},
            union(self.star, later, more.star),
            union(self.double, more.double),
        )

    def every(self) -> Iterable[Values]:
        yield from self.positional
        yield from self.keywords.values()
        yield self.star
        yield self.double


NO_ARGUMENTS = Arguments()
UNKNOWN_ARGUMENTS = Arguments(star=ANY, double=ANY)


def size_of(values: Values) -> int:
    total = 0
    for value in values:
        total += 1
        if isinstance(value, (Instance, Partial)):
            total += value.arguments.size
        elif isinstance(value, Bound):
            total += size_of((value.fn, value.self))
        elif isinstance(value, Sequence):
            total += sum(map(size_of, (*value.items, value.rest)))
        elif isinstance(value, Table):
            total += sum(map(size_of, (*value.items.values(), value.rest)))
    return total


def key_of(values: Values) -> Hashable:
    if len(values) == 1:
        return values[0].key
    return frozenset(v.key for v in values)


def union(*groups: Values) -> Values:
    """All candidates, each once, in order."""
    full = [g for g in groups if g]
    if not full:
        return NOTHING
    if len(full) == 1 or all(g is full[0] for g in full):
        return full[0]
    seen: dict[Hashable, Value] = {}
    for group in full:
        for value in group:
            seen.setdefault(value.key, value)
    found = tuple(seen.values())
    if len(found) > MOST_CANDIDATES:
        return (*found[:MOST_CANDIDATES], Unknown("there are too many candidates"))
    return found


def constants(values: Values) -> list[Any] | None:
    """The constants that a key may be, or None where it may be something else."""
    found = []
    for value in values:
        if not isinstance(value, Known) or type(value.obj) not in _CONSTANTS:
            return None
        found.append(value.obj)
    return found or None
