"""A function being read with certain arguments, and what the calls in it do."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .scopes import Comprehension, Scope, scope_of
from .values import UNKNOWN, Arguments, Known, Value, Values


@dataclass(eq=False, slots=True)
class Frame:
    """One scope with the candidates for its parameters.

    `fn` is the function being read; a nested scope has that of the frame around it.
    """

    scope: Scope
    fn: types.FunctionType
    offset: int
    depth: int
    parameters: dict[str, Values]
    parent: Frame | None = None
    names: dict[str, Values] = field(default_factory=dict)
    # The parameters of interest, and the names of interest from around it.
    interest: frozenset[str] | None = None
    # Whether a name may stand for an object with operators of its own.
    has_operators: bool | None = None
    outcomes: dict[ast.Call, CallOutcome] = field(default_factory=dict)
    nested: dict[int, Frame] = field(default_factory=dict)
    result: Values | None = None
    # What reading an attribute or an item runs (a property, a `__getitem__`), and where.
    implied: list[tuple[ast.AST, Effect]] = field(default_factory=list)

    def outward(self) -> Iterator[Frame]:
        """The frame itself and those around it."""
        frame: Frame | None = self
        while frame is not None:
            yield frame
            frame = frame.parent

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


@dataclass(eq=False)
class Instance(Value):
    """An object that the code being read makes, or `self` of a method read by itself."""

    cls: Known | Local
    arguments: Arguments


@dataclass(eq=False)
class Context(Value):
    """The `ctx` that `forward` fills and `backward` reads."""

    writer: Frame | None


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


@dataclass(eq=False, slots=True, init=False)
class CallOutcome:
    """What a call does, and what it returns: values, and the results of the frames it enters."""

    effects: list[Effect]
    values: list[Value]
    frames: list[Frame]
    # Calls of functions that launch nothing; only their results may matter.
    idle: list[tuple[Call, types.FunctionType]]
    # What happens only on a condition: another backend is active.
    alternatives: list[tuple[str, list[Effect]]]

    # Written out: one is made for every call, and a dataclass calls a factory for each field.
    def __init__(self) -> None:
        self.effects = []
        self.values = []
        self.frames = []
        self.idle = []
        self.alternatives = []

    def enter(self, frame: Frame, cost: int = 1) -> None:
        """Run a function, and return what it returns."""
        self.effects.append(Entered(frame, cost))
        self.frames.append(frame)


# Of every call that does nothing and returns nothing known; nobody adds to it.
IDLE = CallOutcome()
IDLE.values.append(UNKNOWN)


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
