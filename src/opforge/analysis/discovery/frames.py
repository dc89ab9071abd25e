"""A function being read with certain arguments, and what the calls in it do."""

from __future__ import annotations

import ast
import types
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from .scopes import Comprehension, Scope, scope_of
from .values import Arguments, Known, Value, Values, lazy


class Frame:
    """One scope with the candidates for its parameters.

    `fn` is the function being read; a nested scope has that of the frame around it. Not a
    dataclass: one with so many fields takes twice as long to make.
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
        self.outcomes: dict[int, CallOutcome] = {}
        self.nested: dict[int, Frame] = {}
        self.result: Values | None = None
        # What reading an attribute or an item runs: a property, a `__getitem__`.
        self.implied: list[Effect] = []
        self.implied_at: list[ast.AST] = []

    def comprehension(self, node: Comprehension) -> Frame:
        """The frame of a comprehension in this one."""
        inner = self.nested.get(id(node))
        if inner is None:
            inner = Frame(scope_of(node), self.fn, self.offset, self.depth, {}, self)
            self.nested[id(node)] = inner
        return inner

    def location(self, node: ast.AST) -> str:
        line = getattr(node, "lineno", 1) + self.offset
        return f"{self.fn.__code__.co_filename}:{line}"

    @property
    def name(self) -> str:
        here = self.fn.__qualname__
        return here if self.parent is None else f"{here}.<{self.scope.name.strip('<>')}>"


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

    @lazy
    def size(self) -> int:
        return 1 + self.arguments.size


@dataclass(eq=False)
class Context(Value):
    """The `ctx` that `forward` fills and `backward` reads."""

    writers: tuple[Frame, ...]

    @lazy
    def key(self) -> Hashable:
        return ("context", tuple(map(id, self.writers)))


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
class NestedCall:
    """A call of an operator."""

    name: str
    op: Any


@dataclass(eq=False, slots=True)
class Lost:
    """A call that cannot be followed."""

    why: str


Effect = Launched | Entered | NestedCall | Lost


class CallOutcome:
    """What a call does, and what it returns: values, and the results of the frames it enters."""

    __slots__ = ("effects", "frames", "idle", "values")

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.values: list[Value] = []
        self.frames: list[Frame] = []
        # Calls of functions that launch nothing; only their results may matter.
        self.idle: list[tuple[Call, types.FunctionType]] = []

    def enter(self, frame: Frame, cost: int = 1) -> None:
        """Run a function, and return what it returns."""
        self.effects.append(Entered(frame, cost))
        self.frames.append(frame)


@dataclass(eq=False, slots=True)
class Call:
    """One call: the frame it stands in, its arguments, and the outcome that it adds to.

    `cost` is how much deeper the callee lies: 0 for a step from a wrapper to what it wraps.
    """

    frame: Frame
    arguments: Arguments
    outcome: CallOutcome
    cost: int = 1

    def given(self, arguments: Arguments) -> Call:
        """The same with other arguments."""
        return Call(self.frame, arguments, self.outcome, self.cost)

    def after(self, first: Value) -> Call:
        """The same with one more argument in front."""
        return self.given(self.arguments.after((first,)))

    def at_cost(self, cost: int) -> Call:
        return Call(self.frame, self.arguments, self.outcome, cost)
