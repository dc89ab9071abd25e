"""A backward that a library can carry: calls of the library's operators, with flat arguments.

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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from ...model import MISSING, Codec, Leaf, Lowered, Node, Record, flat_width
from ...registry import Entry, registry
from ..ir.interface import Flat

# By its first word: a grad, an input or an output with its index, a value, a call with the op's
# name and its arguments, or an item of a call with its index.
Term = tuple[Flat, ...]


class _Other(Exception):
    """The backward does something other than call operators."""


def formula_of(entry: Entry, declared: Collection[str]) -> tuple[Term | None, ...]:
    """One term per argument, None for no gradient; empty if the library cannot carry the backward.

    `declared` are the names of the operators that the library has.
    """
    definition = None if entry.registered is None else entry.registered.definition
    if definition is None or definition.backward is None or entry.lowered is None:
        return ()
    try:
        reader = _FormulaReader(entry.flat())
        if definition.setup_context is not None:
            reader.read_setup(definition.setup_context)
        reader.operators = declared
        return reader.read_backward(definition.backward)
    except (_Other, OSError, SyntaxError):
        return ()


def formula_calling(
    operator: str, entry: Entry, passed: Sequence[Term], gradients: Sequence[str]
) -> tuple[Term | None, ...]:
    """The formula that is one call of an operator: it returns the gradients of some arguments."""
    call: Term = ("call", operator, *passed)
    terms: dict[str, Term] = {
        name: ("item", call, i) if len(gradients) > 1 else call for i, name in enumerate(gradients)
    }
    return tuple(terms.get(argument.name) for argument in entry.flat().arguments)


@dataclass(frozen=True)
class _Parts:
    """A dataclass or NamedTuple as a body sees it; `present` if it may be None."""

    node: Record
    present: Term | None
    fields: list[Any]


def _structure(node: Node, kind: str, index: Iterator[int]) -> Any:
    """A parameter or a result as it is before it is flattened, of `("input", 0)` and the like."""
    if isinstance(node, Leaf):
        return (kind, next(index))
    present = (kind, next(index)) if node.optional else None
    return _Parts(node, present, [_structure(f.node, kind, index) for f in node.fields])


def _enum(leaf: Leaf | None) -> Codec | None:
    """What a schema carries for an Enum; all else it carries as it is."""
    codec = None if leaf is None else leaf.codec
    return None if codec is None or codec.cls is None else codec


def _listed(value: Any) -> Any:
    """A tuple as the list of its elements."""
    is_tuple = isinstance(value, _Parts) and value.node.kind != "dataclass"
    return value.fields if is_tuple else value


class _FormulaReader:
    """Evaluates straight-line code over terms; a tuple of terms stands as a list."""

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        # What setup_context keeps of a call.
        self.attributes: dict[str, Any] = {}
        self.tensors: list[Any] = []
        # Of the function that is read.
        self.ctx = ""
        self.names: dict[str, Any] = {}
        self.globals: Mapping[str, Any] = {}
        # What it may call; None in setup_context, which calls nothing.
        self.operators: Collection[str] | None = None

    def read_setup(self, fn: Callable[..., Any]) -> None:
        names, body = self.begin(fn)
        if len(names) != 3:
            raise _Other
        signature, index = self.lowered.signature, count()
        inputs = [_structure(p.node, "input", index) for p in signature.parameters]
        output = None
        if signature.returns is not None:
            output = _structure(signature.returns, "output", count())
        self.ctx, *others = names
        self.names = dict(zip(others, (inputs, output), strict=True))
        for statement in body:
            match statement:
                case ast.Pass():
                    pass
                case ast.Expr(
                    ast.Call(
                        func=ast.Attribute(ast.Name(self.ctx), "save_for_backward"),
                        args=tensors,
                        keywords=[],
                    )
                ):
                    self.tensors = [self.value(tensor) for tensor in tensors]
                case _:
                    self.run(statement)

    def read_backward(self, fn: Callable[..., Any]) -> tuple[Term | None, ...]:
        (self.ctx, *grads), body = self.begin(fn)
        self.names = {name: ("grad", i) for i, name in enumerate(grads)}
        *before, last = body
        for statement in before:
            self.run(statement)
        if not isinstance(last, ast.Return) or last.value is None:
            raise _Other
        found = self.value(last.value)
        parameters = self.lowered.signature.parameters
        gradients = found if isinstance(found, list) else [found]
        if len(gradients) != len(parameters):
            # One record may be given as its parts, and one call may give all gradients.
            gradients = [found] if len(parameters) == 1 else self.unpacked(found, len(parameters))
        pairs = zip(parameters, gradients, strict=True)
        return tuple(term for p, gradient in pairs for term in self.gradient(p.node, gradient))

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

    def run(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=[target], value=value):
                self.assign(target, self.value(value))
            case _:
                raise _Other

    def assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(name):
                self.names[name] = value
            case ast.Tuple(elements) | ast.List(elements):
                parts = self.unpacked(value, len(elements))
                for element, part in zip(elements, parts, strict=True):
                    self.assign(element, part)
            case ast.Attribute(ast.Name(self.ctx), name) if self.operators is None:
                self.attributes[name] = value
            case _:
                raise _Other

    def unpacked(self, value: Any, count: int) -> list[Any]:
        parts = _listed(value)
        if isinstance(parts, list) and len(parts) == count:
            return parts
        if isinstance(value, tuple) and value[0] == "call":
            return [("item", value, i) for i in range(count)]
        raise _Other

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(bool() | int() | float() | str() as constant):
                return ("value", constant)
            case ast.Constant(None):
                return None
            case ast.Name(name) if name in self.names:
                return self.names[name]
            case ast.Tuple(elements) | ast.List(elements):
                return [self.value(element) for element in elements]
            case ast.Attribute(ast.Name(self.ctx), name):
                kept = {"saved_tensors": self.tensors} | self.attributes
                if self.operators is not None and name in kept:
                    return kept[name]
            case ast.Attribute() | ast.Subscript():
                return self.part(node)
            case ast.Call() if self.operators is not None:
                return self.called(node)
            case ast.Dict(keys, values) if self.operators is not None:
                names = [key.value if isinstance(key, ast.Constant) else None for key in keys]
                return dict(zip(names, map(self.value, values), strict=True))
        raise _Other

    def part(self, node: ast.Attribute | ast.Subscript) -> Any:
        whole = self.value(node.value)
        if isinstance(node, ast.Attribute):
            names = [f.name for f in whole.node.fields] if isinstance(whole, _Parts) else []
            if node.attr in names:
                return whole.fields[names.index(node.attr)]
            raise _Other
        match _listed(whole), self.value(node.slice):
            case list(items), ("value", int(index)) if -len(items) <= index < len(items):
                return items[index]
        raise _Other

    def gradient(self, node: Node, found: Any) -> Iterator[Term | None]:
        """One per flat argument, as `lowering.gradients` has them."""
        if found is None:
            yield from [None] * flat_width(node)
        elif isinstance(node, Leaf):
            if not isinstance(found, tuple) or found[0] == "value":
                raise _Other
            yield found
        else:
            yield from [None] * node.optional
            named = found if isinstance(found, dict) and node.kind != "tuple" else {}
            listed = found if isinstance(found, list) and node.kind != "dataclass" else []
            names = [field.name for field in node.fields]
            if not (len(listed) == len(names) or (named and named.keys() <= {*names})):
                raise _Other
            parts = listed or [named.get(name) for name in names]
            for field, part in zip(node.fields, parts, strict=True):
                yield from self.gradient(field.node, part)

    def called(self, node: ast.Call) -> Term:
        op = self.operator(node.func)
        if node.keywords or op is None or op.name not in (self.operators or ()):
            raise _Other
        lowered = op.flat()
        arguments = [self.value(argument) for argument in node.args]
        if len(arguments) > len(lowered.signature.parameters):
            raise _Other
        pairs = zip(lowered.signature.parameters, arguments, strict=False)
        passed = [term for p, argument in pairs for term in self.passed(p.node, argument)]
        if any(a.default is MISSING for a in lowered.arguments[len(passed) :]):
            raise _Other
        return ("call", op.name, *passed)

    def passed(self, node: Node, value: Any) -> Iterator[Term]:
        """What the schema of an operator gets for a value: one term per flat argument."""
        if isinstance(node, Leaf):
            if value is not None and _enum(node) != self.enum(value):
                raise _Other
            # None is an argument here, not a missing gradient.
            yield ("value", None) if value is None else value
            return
        if node.optional:
            present = value.present if isinstance(value, _Parts) else None
            yield present or ("value", value is not None)
        if value is None and node.optional:
            yield from [("value", None)] * (flat_width(node) - 1)
            return
        parts = _listed(value) if node.kind == "tuple" else None
        if isinstance(value, _Parts) and value.node.cls is node.cls:
            parts = value.fields if value.present is None or node.optional else None
        if not isinstance(parts, list) or len(parts) != len(node.fields):
            raise _Other
        for field, part in zip(node.fields, parts, strict=True):
            yield from self.passed(field.node, part)

    def enum(self, value: Any) -> Codec | None:
        """The Enum that a value is a member of, where a body sees it."""
        if not isinstance(value, tuple):
            raise _Other
        arguments = self.lowered.arguments
        return _enum(arguments[value[1]].leaf) if value[0] == "input" else None

    def operator(self, node: ast.expr) -> Entry | None:
        """The op that an expression names: `scale`, `ops.scale`, `torch.ops.mylib.scale`."""
        path = ast.unparse(node).split(".")
        if not all(part.isidentifier() for part in path) or path[0] not in self.globals:
            return None
        value: Any = self.globals[path[0]]
        for part in path[1:]:
            value = getattr(value, part, None)
        entry = registry.find(value)
        if entry is None or entry.lowered is None:
            return None
        # Beside its function, the operator itself takes records apart.
        is_flat = entry.lowered.path == "flattened" and value is not entry.handle
        return None if is_flat else entry
