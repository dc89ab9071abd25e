"""What an expression may stand for, as far as reading can tell: small abstract values.

A value's `key` tells it from others; values with one key are interchangeable. An expression has
a tuple of candidates, none of them excluded by what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from .frames import Frame
    from .scopes import Scope

# More candidates than a table of kernels has; past it, values are dropped for an unknown one.
MOST_CANDIDATES = 256

_CONSTANTS = (str, int, float, bool, bytes, type(None))


T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801  # used as `property` is
    """`lazy` without its lock, which costs more than most keys."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute = compute
        self.name = compute.__name__

    def __get__(self, owner: Any, cls: type[Any]) -> T:
        found = owner.__dict__[self.name] = self.compute(owner)
        return found


class Value:
    """One thing that an expression may stand for; nobody changes one that was made.

    Those made often are no frozen dataclasses, which take three times as long to make.
    """

    @lazy
    def key(self) -> Hashable:
        raise NotImplementedError


Values = tuple[Value, ...]


@dataclass(eq=False)
class Known(Value):
    """An object that exists: a global, a cell's content, a constant, an attribute of such."""

    obj: Any

    @lazy
    def key(self) -> Hashable:
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

    @lazy
    def key(self) -> Hashable:
        return ("unknown", self.why, self.sticky)


UNKNOWN = Unknown()
NOTHING: Values = ()
ANY: Values = (UNKNOWN,)


@dataclass(eq=False)
class Launch(Value):
    """`k[grid]` or `k.run`: calling it launches."""

    kernel: Any

    @lazy
    def key(self) -> Hashable:
        return ("launch", id(self.kernel))


@dataclass(eq=False)
class Bound(Value):
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

    @lazy
    def key(self) -> Hashable:
        return ("partial", self.fn.key, self.arguments.key)


@dataclass(eq=False)
class Local(Value):
    """A function, lambda or class that the code being read defines."""

    scope: Scope
    frame: Frame

    @lazy
    def key(self) -> Hashable:
        return ("local", id(self.scope), id(self.frame))


@dataclass(eq=False)
class Instance(Value):
    """An object that the code being read makes, or `self` of a method read by itself."""

    cls: Known | Local
    arguments: Arguments

    @lazy
    def key(self) -> Hashable:
        return ("instance", self.cls.key, self.arguments.key)


@dataclass(eq=False)
class Sequence(Value):
    """A list, tuple, set or iterator: items in order, then any number of `rest`."""

    items: tuple[Values, ...] = ()
    rest: Values = NOTHING

    @lazy
    def key(self) -> Hashable:
        return ("sequence", tuple(map(key_of, self.items)), key_of(self.rest))


@dataclass(eq=False)
class Table(Value):
    """A dict: entries whose key is known, and values under other keys."""

    items: dict[Hashable, Values] = field(default_factory=dict)
    rest: Values = NOTHING

    @lazy
    def key(self) -> Hashable:
        entries = tuple((k, key_of(v)) for k, v in self.items.items())
        return ("table", entries, key_of(self.rest))


@dataclass(eq=False)
class Method(Value):
    """A method of a container: `table.get`."""

    base: Value
    name: str

    @lazy
    def key(self) -> Hashable:
        return ("method", self.base.key, self.name)


@dataclass(frozen=True)
class OpSpace(Value):
    """`torch.ops.ns`."""

    name: str

    @lazy
    def key(self) -> Hashable:
        return ("space", self.name)


@dataclass(frozen=True)
class Operator(Value):
    """`torch.ops.ns.op`, registered or not."""

    name: str

    @lazy
    def key(self) -> Hashable:
        return ("operator", self.name)


@dataclass(eq=False)
class Super(Value):
    """`super()` in a method of `cls`."""

    cls: type[Any]
    self: Value

    @lazy
    def key(self) -> Hashable:
        return ("super", id(self.cls), self.self.key)


@dataclass(eq=False)
class Context(Value):
    """The `ctx` that `forward` fills and `backward` reads."""

    writers: tuple[Frame, ...]

    @lazy
    def key(self) -> Hashable:
        return ("context", tuple(map(id, self.writers)))


@dataclass(frozen=True)
class Maker(Value):
    """`triton.autotune(...)`: what it makes of a kernel exists only when the function runs."""

    @lazy
    def key(self) -> Hashable:
        return ("maker",)


@dataclass(eq=False)
class Arguments:
    """A call's arguments; `star` and `double` are what was unpacked, its length unknown."""

    positional: tuple[Values, ...] = ()
    keywords: dict[str, Values] = field(default_factory=dict)
    star: Values = NOTHING
    double: Values = NOTHING

    @lazy
    def size(self) -> int:
        """How many values there are, those inside others counted."""
        return sum(map(size_of, self.every()))

    @lazy
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
