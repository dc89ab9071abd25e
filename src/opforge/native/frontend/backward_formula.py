"""A backward that a library can carry: calls of the library's operators.

    def save(ctx, inputs, output):
        ctx.factor = inputs[1]

    def backward(ctx, grad):
        return scale(grad, ctx.factor), None

        -> (("call", "mylib::scale", ("grad", 0), ("input", 1)), None)

The source is read statement by statement. With anything else in it, such as a branch or arithmetic,
running it once would not show what it does the next time. It is then carried only if it was built:
as one call of the operator that it became.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ...model import Parameter, Record
from ...registry import Entry, registry
from ..ir.interface import Flat

# By its first word: a grad, an input or an output with its index, a value, a call with the op's
# name and its arguments, or an item of a call with its index.
Term = tuple[Flat, ...]


_CONSTANTS = (bool, int, float, str, type(None))


class _Other(Exception):
    """The backward does something other than call operators."""


def formula_of(entry: Entry, declared: Collection[str]) -> tuple[Term | None, ...]:
    """One term per argument, None for no gradient; empty if the library cannot carry the backward.

    `declared` are the names of the operators that the library has.
    """
    definition = None if entry.registered is None else entry.registered.definition
    if definition is None or definition.backward is None or entry.lowered is None:
        return ()
    if entry.lowered.path != "direct":
        return ()
    count = len(entry.lowered.arguments)
    try:
        saved = _Saved(count, len(entry.lowered.returns))
        if definition.setup_context is not None:
            saved.read(definition.setup_context)
        found = _Backward(saved, declared).read(definition.backward)
    except (_Other, OSError, SyntaxError):
        return ()
    return found if len(found) == count else ()


def formula_calling(
    operator: str, entry: Entry, passed: Sequence[Term], gradients: Sequence[str]
) -> tuple[Term | None, ...]:
    """The formula that is one call of an operator, which returns the gradients of some arguments.

    Empty for an op whose `setup_context` sees the arguments unlike its schema has them.
    """
    if entry.lowered is None or entry.lowered.path != "direct":
        return ()
    call: Term = ("call", operator, *passed)
    terms: dict[str, Term] = {
        name: ("item", call, i) if len(gradients) > 1 else call for i, name in enumerate(gradients)
    }
    return tuple(terms.get(argument.name) for argument in entry.lowered.arguments)


def why_left_behind(entry: Entry) -> str:
    """Why `formula_of` found none: "because parameter 'cfg' is a dataclass"."""
    lowered = entry.flat()
    if lowered.path == "direct":
        return "which does more than call the library's operators"
    for parameter in lowered.signature.parameters:
        if is_ := _unlike_schema(parameter):
            return f"because parameter {parameter.name!r} is {is_}"
    return "because a parameter has a default that its schema cannot express"


def _unlike_schema(parameter: Parameter) -> str:
    """What a parameter is, if setup_context and backward see it unlike the schema has it."""
    node = parameter.node
    if isinstance(node, Record):
        return f"a {node.kind}"
    if node.codec is not None:
        return "a Literal" if node.codec.cls is None else "an Enum"
    if node.container == "tuple":
        return "a tuple"
    return "" if parameter.kind == "positional-or-keyword" else parameter.kind


class _Evaluator:
    """Evaluates straight-line code over terms; a tuple of terms stands as a list."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.globals: Mapping[str, Any] = {}

    def begin(self, fn: Callable[..., Any]) -> tuple[list[str], list[ast.stmt]]:
        if not isinstance(fn, types.FunctionType):
            raise _Other
        # Of its code: a function that stands in for another would show the other's source.
        source = inspect.getsource(fn.__code__)
        (node,) = ast.parse(textwrap.dedent(source)).body
        # A lambda's source is the statement around it, which may be the definition of the op.
        if not isinstance(node, ast.FunctionDef) or node.name != fn.__code__.co_name:
            raise _Other
        closed = inspect.getclosurevars(fn)
        self.globals = {**closed.globals, **closed.nonlocals}
        plain = node.args.args
        if node.args.vararg or node.args.kwonlyargs or node.args.kwarg or node.args.defaults:
            raise _Other
        body = node.body
        if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]
        return [a.arg for a in plain], body

    def assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = self.unpacked(value, len(target.elts))
            for element, part in zip(target.elts, parts, strict=True):
                self.assign(element, part)
        else:
            self.keep(target, value)

    def keep(self, _target: ast.expr, _value: Any) -> None:
        raise _Other

    def unpacked(self, value: Any, count: int) -> list[Any]:
        if isinstance(value, list) and len(value) == count:
            return value
        if isinstance(value, tuple) and value[0] == "call":
            return [("item", value, i) for i in range(count)]
        raise _Other

    def value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, _CONSTANTS):
            return None if node.value is None else ("value", node.value)
        if isinstance(node, ast.Name) and node.id in self.names:
            return self.names[node.id]
        if isinstance(node, (ast.Tuple, ast.List)):
            return [self.value(element) for element in node.elts]
        if isinstance(node, ast.Subscript):
            whole, at = self.value(node.value), self.value(node.slice)
            if isinstance(whole, list) and isinstance(at, tuple) and at[0] == "value":
                index = at[1]
                if isinstance(index, int) and -len(whole) <= index < len(whole):
                    return whole[index]
        return self.other(node)

    def other(self, _node: ast.expr) -> Any:
        raise _Other


class _Saved(_Evaluator):
    """Reads setup_context: which attributes and tensors it saves."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inputs = [("input", i) for i in range(inputs)]
        each = [("output", i) for i in range(outputs)]
        self.output: Any = each[0] if outputs == 1 else each
        self.attributes: dict[str, Any] = {}
        self.tensors: list[Any] = []

    def read(self, fn: Callable[..., Any]) -> None:
        names, body = self.begin(fn)
        self.ctx, given, output = names
        self.names = {given: self.inputs, output: self.output}
        for statement in body:
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                self.assign(statement.targets[0], self.value(statement.value))
            elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                self.save(statement.value)
            elif not isinstance(statement, ast.Pass):
                raise _Other

    def keep(self, target: ast.expr, value: Any) -> None:
        if not (isinstance(target, ast.Attribute) and self.is_ctx(target.value)):
            raise _Other
        self.attributes[target.attr] = value

    def save(self, call: ast.Call) -> None:
        function = call.func
        plain = isinstance(function, ast.Attribute) and self.is_ctx(function.value)
        if not plain or ast.unparse(function).partition(".")[2] != "save_for_backward":
            raise _Other
        if call.keywords or any(isinstance(a, ast.Starred) for a in call.args):
            raise _Other
        self.tensors = [self.value(argument) for argument in call.args]

    def is_ctx(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == self.ctx


class _Backward(_Evaluator):
    """A backward's gradients, as terms."""

    def __init__(self, saved: _Saved, declared: Collection[str]) -> None:
        super().__init__()
        self.saved = saved
        self.declared = declared

    def read(self, fn: Callable[..., Any]) -> tuple[Term | None, ...]:
        (self.ctx, *grads), body = self.begin(fn)
        self.names = {name: ("grad", i) for i, name in enumerate(grads)}
        *before, last = body
        for statement in before:
            if not (isinstance(statement, ast.Assign) and len(statement.targets) == 1):
                raise _Other
            self.assign(statement.targets[0], self.value(statement.value))
        if not isinstance(last, ast.Return) or last.value is None:
            raise _Other
        found = self.value(last.value)
        count = len(self.saved.inputs)
        gradients = found if isinstance(found, list) else [found]
        if len(gradients) == 1 and count > 1:
            gradients = self.unpacked(gradients[0], count)
        if any(isinstance(g, list) or (g is not None and g[0] == "value") for g in gradients):
            raise _Other
        return tuple(gradients)

    def other(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == self.ctx and node.attr == "saved_tensors":
                return self.saved.tensors
            if node.value.id == self.ctx and node.attr in self.saved.attributes:
                return self.saved.attributes[node.attr]
        if isinstance(node, ast.Call):
            return self.called(node)
        raise _Other

    def called(self, node: ast.Call) -> Term:
        op = self.operator(node.func)
        if node.keywords or op is None or op.name not in self.declared:
            raise _Other
        arguments = [self.value(argument) for argument in node.args]
        if any(isinstance(argument, list) for argument in arguments):
            raise _Other
        # None is an argument here, not a missing gradient.
        passed = [("value", None) if argument is None else argument for argument in arguments]
        return ("call", op.name, *passed)

    def operator(self, node: ast.expr) -> Entry | None:
        """The op that an expression names: `scale`, `ops.scale`, `torch.ops.mylib.scale`."""
        path = ast.unparse(node).split(".")
        if not all(part.isidentifier() for part in path) or path[0] not in self.globals:
            return None
        value: Any = self.globals[path[0]]
        for part in path[1:]:
            value = getattr(value, part, None)
        entry = registry.find(value)
        return entry if entry is not None and entry.lowered is not None else None
