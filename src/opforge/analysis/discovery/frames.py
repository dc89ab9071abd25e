"""A function being read with certain arguments, and what a call in it does."""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from .scopes import Scope
from .values import (
    ANY,
    NOTHING,
    UNKNOWN,
    UNKNOWN_ARGUMENTS,
    Arguments,
    Bound,
    Instance,
    Known,
    Launch,
    Local,
    Partial,
    Sequence,
    Table,
    Unknown,
    Value,
    Values,
    key_of,
    union,
)


class Frame:
    """One scope with what its parameters may be.

    `fn` is the function read, for a nested scope that of the frame around it. No dataclass, as
    one with so many fields takes twice as long to make.
    """

    __slots__ = (
        "depth", "fn", "has_operators", "implied", "implied_at", "interest", "names", "nested",
        "objects", "offset", "outcomes", "parameters", "parent", "result", "scope",
    )  # fmt: skip

    def __init__(  # noqa: PLR0917  # in the order of what it is made of
        self,
        scope: Scope,
        fn: types.FunctionType,
        offset: int,
        depth: int,
        parameters: dict[str, Values],
        parent: Frame | None = None,
    ) -> None:
        self.scope = scope
        self.fn = fn
        self.offset = offset
        self.depth = depth
        self.parameters = parameters
        self.parent = parent
        self.names: dict[str, Values] = {}
        self.interest: dict[str, bool] = {}
        # Names that may stand for an object with operators of its own, and whether any name may.
        self.objects: dict[str, bool] = {}
        self.has_operators: bool | None = None
        self.outcomes: dict[int, Outcome] = {}
        self.nested: dict[int, Frame] = {}
        self.result: Values | None = None
        # What reading an attribute or an item runs: a property, a `__getitem__`.
        self.implied: list[Effect] = []
        self.implied_at: list[ast.AST] = []

    def location(self, node: ast.AST) -> str:
        line = getattr(node, "lineno", 1) + self.offset
        return f"{self.fn.__code__.co_filename}:{line}"

    @property
    def name(self) -> str:
        here = self.fn.__qualname__
        return here if self.parent is None else f"{here}.<{self.scope.name.strip('<>')}>"


@dataclass(eq=False, slots=True)
class Launched:
    """A call launches a kernel."""

    kernel: Any


@dataclass(eq=False, slots=True)
class Entered:
    """A call runs a function that can be read."""

    frame: Frame
    cost: int = 1


@dataclass(eq=False, slots=True)
class Called:
    """A call of an operator."""

    name: str
    op: Any


@dataclass(eq=False, slots=True)
class Lost:
    """A call that cannot be followed."""

    why: str


Effect = Launched | Entered | Called | Lost


class Outcome:
    """What a call does, and what it returns: values, and the results of the frames it enters."""

    __slots__ = ("effects", "frames", "idle", "values")

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.values: list[Value] = []
        self.frames: list[Frame] = []
        # Calls of functions that launch nothing; only what they return may be asked for.
        self.idle: list[tuple[Frame, types.FunctionType, Arguments]] = []


def bind(
    scope: Scope,
    given: Arguments,
    default_of: Callable[[str], Values],
    missing: Callable[[str], Values],
) -> dict[str, Values]:
    """Parameter name -> candidates, as Python binds a call.

    `default_of` gives a parameter's default, `missing` what a parameter is that gets nothing.
    """
    positional = scope.positional
    bound: dict[str, Values] = dict(zip(positional, given.positional, strict=False))
    keywords = given.keywords
    taken = len(bound)
    if taken < len(scope.listed):
        star, double = given.star, given.double
        for name in scope.listed[taken:]:
            if name in keywords:
                bound[name] = keywords[name]
                continue
            loose = double if not star or name not in positional else union(star, double)
            default = default_of(name)
            bound[name] = union(default, loose) if loose else default or missing(name)
    if scope.vararg is not None:
        bound[scope.vararg] = (Sequence(given.positional[len(positional) :], given.star),)
    if scope.kwarg is not None:
        items: dict[Hashable, Values] = {k: v for k, v in keywords.items() if k not in bound}
        bound[scope.kwarg] = (Table(items, given.double),)
    return bound


def defaults_of(fn: types.FunctionType) -> Callable[[str], Values]:
    """A parameter's default, as the function holds it now."""
    if not fn.__defaults__ and not fn.__kwdefaults__:
        return _no_default
    code = fn.__code__
    positional = code.co_varnames[: code.co_argcount]
    held = dict(zip(reversed(positional), reversed(fn.__defaults__ or ()), strict=False))
    held.update(fn.__kwdefaults__ or {})
    values: dict[str, Values] = {name: (Known(value),) for name, value in held.items()}
    return lambda name: values.get(name, NOTHING)


def _no_default(name: str) -> Values:  # noqa: ARG001  # as the functions that `defaults_of` gives
    return NOTHING


@functools.lru_cache(maxsize=4096)
def parameter_unknown(name: str) -> Values:
    return (Unknown(f"parameter '{name}' is given by the caller"),)


def context_key(bound: dict[str, Values]) -> Hashable:
    """Tells calls of one function apart; its parameters are always bound in one order."""
    return tuple([v[0].key if len(v) == 1 else key_of(v) for v in bound.values()])


def without_numbers(bound: dict[str, Values], scope: Scope) -> dict[str, Values]:
    """The same with numbers forgotten that select nothing: block sizes, flags."""
    for name, values in bound.items():
        if values is ANY or name in scope.keys:
            continue
        for value in values:
            if type(value) is Known and type(value.obj) in _NUMBERS:
                bound[name] = union(tuple(v for v in values if not _is_number(v)), ANY)
                break
    return bound


def _is_number(value: Value) -> bool:
    return type(value) is Known and type(value.obj) in _NUMBERS


_NUMBERS = frozenset({int, float, bool})


def generalized(bound: dict[str, Values]) -> dict[str, Values]:
    """The same with numbers, texts and the insides of objects forgotten.

    They differ from call to call without end.
    """
    return {name: union(*((_general(v),) for v in values)) for name, values in bound.items()}


def _general(value: Value) -> Value:
    if isinstance(value, Known) and type(value.obj) in _CONSTANTS:
        return UNKNOWN
    if isinstance(value, Instance) and not any(
        isinstance(v, (Launch, Local, Bound, Partial, Known)) and not _is_constant(v)
        for group in value.arguments.every()
        for v in group
    ):
        return Instance(value.cls, UNKNOWN_ARGUMENTS)
    return value


_CONSTANTS = (str, int, float, bool, bytes, type(None))


def _is_constant(value: Value) -> bool:
    return isinstance(value, Known) and type(value.obj) in _CONSTANTS
