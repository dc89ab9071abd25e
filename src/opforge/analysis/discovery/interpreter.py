"""Evaluates the expressions of frames: one interpreter for each reading."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from .attributes import AttributeResolver
from .calls import CallTable
from .containers import elements
from .expressions import HANDLERS
from .frame_table import FrameTable
from .frames import IDLE, Call, CallOutcome, Frame
from .interest import Interest
from .names import NameResolver
from .operators import OperatorTable
from .values import (
    ANY,
    NONE,
    NOTHING,
    UNKNOWN,
    Arguments,
    Known,
    Sequence,
    Unknown,
    Value,
    Values,
    union,
)

# How deep expressions inside expressions and calls inside calls are followed.
_DEEPEST = 60
# How many expressions one reading evaluates, enough for some hundred functions. Reading stops
# there and says so, instead of taking seconds.
_FUEL = 20_000


_NAME, _CALL = ast.Name, ast.Call


class Interpreter:
    """Holds the parts, each of which knows one kind of question, and is their `Machine`."""

    def __init__(self, max_depth: int, root: Frame) -> None:
        self.max_depth = max_depth
        self.interest = Interest()
        self.frames = FrameTable(self, root)
        self.names = NameResolver(self, self.interest)
        self.attributes = AttributeResolver(self, self.frames, self.interest)
        self.operators = OperatorTable(self, self.attributes)
        self.calls = CallTable(self, self.frames, self.attributes)
        # Bound once: a method that only passes the question on would cost each of them a call.
        self.known = self.interest.known
        self.lookup = self.names.find
        self.stored = self.names.stored
        self.attribute = self.attributes.find
        self.operate = self.operators.operate
        self.call = self.calls.call
        self.outcome = self.calls.outcome
        self._nesting = 0
        self._fuel = _FUEL

    @property
    def exhausted(self) -> bool:
        """Whether something was left out because there was too much to read."""
        return self.frames.exhausted or self._fuel <= 0

    def evaluate(self, frame: Frame, node: ast.AST) -> Values:
        kind = type(node)
        if kind is _NAME:
            name: str = node.id  # type: ignore[attr-defined]
            names = frame.names
            return names[name] if name in names else self.lookup(frame, name)
        if kind is _CALL and node in frame.outcomes:
            outcome = frame.outcomes[node]
            return ANY if outcome is IDLE else self.results(outcome)
        handler = _HANDLERS.get(kind)
        if handler is None:
            return ANY
        fuel, nesting = self._fuel, self._nesting
        if nesting > _DEEPEST or fuel <= 0:
            return ANY
        self._fuel = fuel - 1
        self._nesting = nesting + 1
        try:
            return handler(self, frame, node)
        finally:
            self._nesting = nesting

    def run(self, frame: Frame, callee: Value, arguments: Arguments, node: ast.AST) -> Values:
        outcome = CallOutcome()
        self.call(Call(frame, arguments, outcome), callee)
        frame.implied += [(node, effect) for effect in outcome.effects]
        return self.results(outcome)

    def results(self, outcome: CallOutcome) -> Values:
        if outcome.idle:
            self._enter_idle(outcome)
        values, frames = outcome.values, outcome.frames
        if not frames:
            nothing_known = not values or (len(values) == 1 and values[0] is UNKNOWN)
            return ANY if nothing_known else tuple(values)
        if len(frames) == 1 and not values:
            result = frames[0].result
            return (self._returned(frames[0]) if result is None else result) or ANY
        return union(tuple(values), *[self._returned(frame) for frame in frames]) or ANY

    def _enter_idle(self, outcome: CallOutcome) -> None:
        """Find the frames whose results are asked for, of functions that launch nothing."""
        for call, fn in outcome.idle:
            inner = self.frames.of_function(call.frame, fn, call.arguments, 0)
            if inner is None:
                outcome.values.append(UNKNOWN)
            else:
                outcome.frames.append(inner)
        outcome.idle = []

    def _returned(self, frame: Frame) -> Values:
        """What a function returns; for a generator, what it yields."""
        if frame.result is not None:
            return frame.result
        if frame.depth > self.max_depth:
            return (Unknown("it lies deeper than max_depth"),)
        frame.result = NOTHING
        scope = frame.scope
        if frame.interest is None:
            # It looks up most names that the function reads, all at once.
            self.interest.of(frame)
        if scope.is_generator:
            yielded = [self.evaluate(frame, ast.List([node])) for node in scope.yields]
            frame.result = (Sequence(rest=elements(union(*yielded))),)
            return frame.result
        for node in scope.returns:
            found = self.evaluate(frame, node)
            frame.result = union(frame.result, found) if frame.result else found
        frame.result = frame.result or NONE
        return frame.result


def _call(machine: Interpreter, frame: Frame, node: ast.Call) -> Values:
    outcome = machine.outcome(frame, node)
    return ANY if outcome is IDLE else machine.results(outcome)


def _constant(_machine: Interpreter, _frame: Frame, node: ast.Constant) -> Values:
    value = node.value
    return NONE if value is None else (Known(value),)


_HANDLERS: dict[type[ast.AST], Callable[[Any, Frame, Any], Values]] = {
    **HANDLERS,
    ast.Call: _call,
    ast.Constant: _constant,
}
