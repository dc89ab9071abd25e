"""Which Triton kernels and operators a function launches, found by reading it."""

from __future__ import annotations

import ast
import builtins
import collections
import dataclasses
import sys
import types
from collections.abc import Iterator
from typing import Any

from ... import _compat
from ...model import Discovery, KernelRef, NestedOp, Unresolved
from .bytecode import line_reading, mentions
from .containers import opened
from .frames import IDLE, Call, CallOutcome, Effect, Entered, Frame, Launched, Lost, NestedCall
from .interpreter import Interpreter
from .objects import (
    OP_MARK,
    absolute_name,
    describe,
    is_instance,
    is_set,
    may_be_imported,
    wrapped,
)
from .scopes import Scope, scope_of
from .values import GIVEN_ARGUMENTS, Known, TableValue


def find_kernels(fn: Any, max_depth: int = 5) -> Discovery:
    """What a function launches; `opforge.find_kernels`, which also takes registered operators."""
    return _Walk(max_depth).discover(fn)


class _Walk:
    """Reads frames breadth first, and collects what their calls do."""

    def __init__(self, max_depth: int) -> None:
        # The caller; it has the depth of the function asked about.
        self.root = Frame(_ROOT, _NOBODY, 0, 0, {})
        self.interpreter = Interpreter(max_depth, self.root)
        self.max_depth = max_depth
        self.queue: collections.deque[Frame] = collections.deque()
        self.visited: set[int] = set()
        self.kernels: dict[int, KernelRef] = {}
        self.unresolved: dict[tuple[str, str], Unresolved] = {}
        self.nested: dict[str, NestedOp] = {}
        self.unbound: dict[str, Unresolved] = {}
        self.read: set[int] = set()
        # What another backend does, which is read last: a kernel that is launched anyway is not
        # listed again.
        self.alternatives: list[tuple[str, Frame, ast.AST, Effect]] = []
        self.conditional: dict[int, KernelRef] = {}
        self.condition = ""

    def discover(self, fn: Any) -> Discovery:
        call = Call(self.root, GIVEN_ARGUMENTS, CallOutcome(), cost=0)
        self.interpreter.call(call, Known(_body(fn)))
        for effect in call.outcome.effects:
            if isinstance(effect, Lost):
                self.lose(describe(fn), _place(fn), effect.why)
            else:
                self.note(self.root, self.root.scope.node, effect)
        self.read_queue()
        if self.interpreter.exhausted:
            self.lose(describe(fn), _place(fn), "it calls too much to be read to the end")
        for condition, frame, node, effect in self.alternatives:
            self.condition = condition
            self.note(frame, node, effect)
            self.read_queue()
        return Discovery(
            tuple(self.kernels.values()),
            tuple(self.unresolved.values()),
            tuple(self.nested.values()),
            tuple(self.unbound.values()),
            tuple(self.conditional.values()),
        )

    def read_queue(self) -> None:
        while self.queue:
            self.visit(self.queue.popleft())

    def visit(self, frame: Frame) -> None:
        if id(frame) in self.visited:
            return
        self.visited.add(id(frame))
        if frame.parent is None:
            self.find_unbound(frame.fn)
        try:
            self.read_frame(frame)
        except Exception as error:  # noqa: BLE001  # such as code of an object that runs after all
            why = f"reading it failed: {type(error).__name__}: {error}"
            self.lose(frame.name, frame.location(frame.scope.node), why)

    def read_frame(self, frame: Frame) -> None:
        scope = frame.scope
        for call in self.interpreter.interest.calls(frame):
            outcome = frame.outcomes.get(call) or self.interpreter.outcome(frame, call)
            if outcome is IDLE:
                continue
            for effect in outcome.effects:
                self.note(frame, call, effect)
            for when, effects in outcome.alternatives:
                self.alternatives += [(self.condition or when, frame, call, e) for e in effects]
        if scope.operations and self.interpreter.operators.matter(frame):
            for operation in scope.operations:
                self.interpreter.operate(frame, operation)
        for node in scope.entered:
            self.interpreter.names.entered(frame, node)
        for inner in scope.comprehensions:
            self.read_frame(frame.comprehension(inner))
        while frame.implied:
            self.note(frame, *frame.implied.pop())

    def note(self, frame: Frame, node: ast.AST, effect: Effect) -> None:
        if isinstance(effect, Entered):
            self.enter(frame, node, effect)
        elif isinstance(effect, Launched):
            self.launch(frame, node, effect.kernel)
        elif isinstance(effect, NestedCall):
            self.call_operator(frame, node, effect)
        elif not self.condition:
            self.lose(_text(node), frame.location(node), effect.why)

    def enter(self, frame: Frame, node: ast.AST, entered: Entered) -> None:
        inner = entered.frame
        # The call may have been read when it seemed to lie deeper.
        inner.depth = min(inner.depth, frame.depth + entered.cost)
        if inner.depth > self.max_depth:
            if not self.condition:
                why = f"{inner.name} lies deeper than max_depth={self.max_depth}"
                self.lose(_text(node), frame.location(node), why)
        elif id(inner) not in self.visited:
            # What adds no depth belongs to the level being read.
            (self.queue.append if entered.cost else self.queue.appendleft)(inner)

    def launch(self, frame: Frame, node: ast.AST, kernel: Any) -> None:
        found = self.conditional if self.condition else self.kernels
        if id(kernel) not in self.kernels and id(kernel) not in self.conditional:
            name, place = _compat.kernels.name_and_location(kernel)
            via = f"{_text(node)} in {frame.name} ({frame.location(node)})"
            found[id(kernel)] = KernelRef(name, kernel, place, via, self.condition)
        keywords = [*self.keywords(frame, node)] if isinstance(node, ast.Call) else ()
        dropped = _compat.kernels.dropped_options(kernel, keywords) if keywords else ()
        if dropped and id(kernel) in found:
            ref, place = found[id(kernel)], frame.location(node)
            named = dict.fromkeys([*ref.dropped, *(f"{name} ({place})" for name in dropped)])
            found[id(kernel)] = dataclasses.replace(ref, dropped=tuple(named))

    def keywords(self, frame: Frame, node: ast.Call) -> Iterator[str]:
        """The names of a call's keywords, as far as those of `**options` are known."""
        for keyword in node.keywords:
            if keyword.arg is not None:
                yield keyword.arg
                continue
            for table in map(opened, self.interpreter.evaluate(frame, keyword.value)):
                if isinstance(table, TableValue):
                    yield from (name for name in table.items if isinstance(name, str))

    def call_operator(self, frame: Frame, node: ast.AST, called: NestedCall) -> None:
        name = called.name
        if self.condition:
            return
        if _compat.operators.is_built_in(name) or name in self.nested:
            return
        op = called.op if called.op is not None else _compat.operators.find(name)
        self.nested[name] = NestedOp(name, frame.location(node), op)

    def lose(self, name: str, location: str, why: str) -> None:
        if self.condition:
            return
        self.unresolved.setdefault((location, name), Unresolved(name, location, why))

    def find_unbound(self, fn: types.FunctionType) -> None:
        if id(fn) in self.read or self.condition:
            return
        self.read.add(id(fn))
        code = fn.__code__
        cells = zip(code.co_freevars, fn.__closure__ or (), strict=False)
        missing = {name: "closure" for name, cell in cells if not is_set(cell)}
        held = fn.__globals__
        said = mentions(code)
        for name in said.globals_read:
            if name not in held and name not in _BUILTINS:
                missing[name] = "global"
        for name, where in missing.items():
            location = f"{code.co_filename}:{line_reading(code, name)}"
            why = f"the {where} name is read in {fn.__qualname__} and not bound yet"
            self.unbound.setdefault(name, Unresolved(name, location, why))
        for name, level in said.imports:
            module = absolute_name(fn, name, level)
            if module and module not in sys.modules and may_be_imported(module):
                why = f"the module is imported in {fn.__qualname__} and not loaded yet"
                self.unbound.setdefault(module, Unresolved(module, _place(fn), why))


def _body(fn: Any) -> Any:
    """What to read of an operator: the function it was made of."""
    if OP_MARK in _compat.kernels.instance_dict(fn):
        return wrapped(fn) or fn
    return _compat.operators.body_of(fn) or fn


def _place(fn: Any) -> str:
    code = fn.__code__ if is_instance(fn, types.FunctionType) else None
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else "unknown"


def _text(node: ast.AST) -> str:
    """A call as its author wrote it: `table['silu'][grid]`."""
    return _expression(node.func if isinstance(node, ast.Call) else node)


def _expression(node: ast.AST) -> str:
    # `ast.unparse` takes as long as reading a whole small function.
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant):
        return repr(node.value)
    if isinstance(node, ast.Attribute):
        return f"{_expression(node.value)}.{node.attr}"
    if isinstance(node, ast.Subscript):
        return f"{_expression(node.value)}[{_expression(node.slice)}]"
    if isinstance(node, ast.Tuple) and node.elts:
        text = ", ".join(map(_expression, node.elts)) + ("," if len(node.elts) == 1 else "")
        # A tuple without parentheses starts where its first element does.
        return text if node.col_offset == node.elts[0].col_offset else f"({text})"
    return ast.unparse(node)


_BUILTINS = vars(builtins)
_ROOT: Scope = scope_of(ast.parse("def find_kernels(): ...").body[0])  # type: ignore[arg-type]
_NOBODY = types.FunctionType(compile("", "<find_kernels>", "exec"), {})
