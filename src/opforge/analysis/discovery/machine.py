"""What the parts of the interpreter ask of each other.

Evaluating an expression may look up an attribute, that may run a property, and running it
evaluates expressions. The parts therefore share one machine, which the interpreter is.
"""

from __future__ import annotations

import ast
from typing import Any, Protocol

from .frames import Call, CallOutcome, Frame
from .scopes import Operation
from .values import Arguments, Known, Value, Values


class Machine(Protocol):
    """Evaluates expressions and follows calls."""

    def evaluate(self, frame: Frame, node: ast.AST) -> Values:
        """What an expression may stand for."""

    def known(self, obj: Any) -> Known:
        """An existing object as a value, the same one throughout a reading."""

    def lookup(self, frame: Frame, name: str) -> Values:
        """What a name may stand for where a frame's code reads it."""

    def stored(self, frame: Frame, key: str, stores: list[ast.expr]) -> Values:
        """The values of `stores`, which the frame keeps under `key`."""

    def attribute(self, frame: Frame, value: Value, name: str, node: ast.AST) -> Values:
        """An attribute of a value; `node` is blamed for what a property runs."""

    def operate(self, frame: Frame, node: Operation) -> Values:
        """What an operator that a class defines gives; nothing for numbers and tensors."""

    def call(self, call: Call, callee: Value) -> None:
        """Add to a call's outcome what calling `callee` does."""

    def run(self, frame: Frame, callee: Value, arguments: Arguments, node: ast.AST) -> Values:
        """The result of a call that no call expression shows: a property, a `__getitem__`."""

    def results(self, outcome: CallOutcome) -> Values:
        """What a call returns."""
