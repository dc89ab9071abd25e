"""What a function's text binds, calls and returns, scope by scope, by Python's scoping."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from .identity import cached_by_identity

Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
Operation = ast.BinOp | ast.AugAssign | ast.UnaryOp | ast.Compare | ast.Subscript
Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef | Comprehension

# Where in a value the target of an unpacking lies: an index, or None for a starred target, which
# takes all that is left.
Path = tuple[int | None, ...]

# Stand for `.ops` and for a lambda among the names that a statement mentions.
OPERATORS, LAMBDA = "<ops>", "<lambda>"


@dataclass(eq=False, slots=True)
class Binding:
    """One way a name gets its value.

    `how` is "value", "element" (of what a loop iterates over), "enter" (what a `with` binds),
    "part" (of what a `match` takes apart), "import", "define" or "unknown"; `names` are those
    that the value mentions.
    """

    how: str
    node: ast.AST
    path: Path = ()
    names: Collection[str] = frozenset()


@dataclass
class Scope:
    """One function, lambda, class or comprehension."""

    node: Node
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    # Each call with the names in it.
    calls: list[tuple[ast.Call, set[str]]] = field(default_factory=list)
    entered: list[ast.expr] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    returns: list[ast.expr] = field(default_factory=list)
    yields: list[ast.expr] = field(default_factory=list)
    comprehensions: list[Comprehension] = field(default_factory=list)
    # `table[key] = value` and `items.append(value)`, by the name of the container.
    item_stores: dict[str, list[tuple[ast.expr | None, ast.expr]]] = field(default_factory=dict)
    # The names that those values mention, by the name of the container.
    stored_names: dict[str, set[str]] = field(default_factory=dict)
    # `self.name = value`, by both names.
    attribute_stores: dict[tuple[str, str], list[ast.expr]] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    # Names inside the brackets of subscripts.
    keys: set[str] = field(default_factory=set)
    is_generator: bool = False
    parameters: tuple[str, ...] = ()
    # The parameters again, by how they are given.
    positional: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    vararg: str | None = None
    kwarg: str | None = None

    @property
    def name(self) -> str:
        return getattr(self.node, "name", "<lambda>")


@cached_by_identity
def scope_of(node: Node) -> Scope:
    """The scope of a tree, collected once."""
    return _Collector(node).scope


def parameter_names(arguments: ast.arguments) -> tuple[str, ...]:
    listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    starred = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    return tuple(a.arg for a in (*listed, *starred))


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
ADDS = frozenset({"append", "add", "insert", "appendleft", "extend", "update", "setdefault"})


class _Collector:
    """Walks one scope's text, without recursion and without entering nested functions."""

    def __init__(self, node: Node) -> None:
        self.scope = Scope(node)
        if isinstance(node, _FUNCTIONS):
            self.parameters(node.args)
        if isinstance(node, ast.Lambda):
            self.scope.returns.append(node.body)
            self.scan(node.body)
        elif isinstance(node, _COMPREHENSIONS):
            self.comprehend(node)
        else:
            self.statements(node.body)
        for name in self.scope.elsewhere:
            # A `global` or `nonlocal` name is looked up outside, and what is assigned to it here
            # counts as well.
            self.scope.bindings.setdefault(name, [])

    def parameters(self, arguments: ast.arguments) -> None:
        scope = self.scope
        scope.parameters = parameter_names(arguments)
        scope.positional = tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args))
        scope.listed = (*scope.positional, *(a.arg for a in arguments.kwonlyargs))
        scope.vararg = arguments.vararg.arg if arguments.vararg is not None else None
        scope.kwarg = arguments.kwarg.arg if arguments.kwarg is not None else None

    def comprehend(self, node: Comprehension) -> None:
        for generator in node.generators:
            self.bind(generator.target, "element", generator.iter, self.scan(generator.iter))
            for test in generator.ifs:
                self.scan(test)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self.scan(part)

    def statements(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        handler = _HANDLERS.get(type(node))
        if handler is not None:
            handler(self, node)
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.scan(child)
            elif isinstance(child, ast.stmt):
                self.statement(child)

    def on_define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self.add(node.name, Binding("define", node))
        for decorator in node.decorator_list:
            self.scan(decorator)
        if isinstance(node, ast.ClassDef):
            return
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.scan(default)

    def on_assign(self, node: ast.Assign) -> None:
        names = self.scan(node.value)
        for target in node.targets:
            self.bind(target, "value", node.value, names)

    def on_annotated(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.bind(node.target, "value", node.value, self.scan(node.value))

    def on_augmented(self, node: ast.AugAssign) -> None:
        self.scope.operations.append(node)
        if isinstance(node.target, ast.Name):
            self.scope.item_stores.setdefault(node.target.id, []).append((None, node.value))
            self.store_names(node.target.id, self.scan(node.value))
        else:
            self.scan(node.value)

    def on_for(self, node: ast.For | ast.AsyncFor) -> None:
        self.bind(node.target, "element", node.iter, self.scan(node.iter))
        self.statements(node.body)
        self.statements(node.orelse)

    def on_with(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            names = self.scan(item.context_expr)
            self.scope.entered.append(item.context_expr)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, "enter", item.context_expr, names)
        self.statements(node.body)

    def on_return(self, node: ast.Return) -> None:
        if node.value is not None:
            self.scope.returns.append(node.value)
            self.scan(node.value)

    def on_if(self, node: ast.If | ast.While) -> None:
        self.scan(node.test)
        self.statements(node.body)
        self.statements(node.orelse)

    def on_try(self, node: ast.Try) -> None:
        self.statements(node.body)
        for handler in node.handlers:
            if handler.type is not None:
                self.scan(handler.type)
            if handler.name:
                self.add(handler.name, Binding("unknown", handler))
            self.statements(handler.body)
        self.statements(node.orelse)
        self.statements(node.finalbody)

    def on_import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            name = alias.asname or alias.name
            if isinstance(node, ast.Import) and alias.asname is None:
                name = name.partition(".")[0]
            one = (
                ast.Import([alias])
                if isinstance(node, ast.Import)
                else ast.ImportFrom(node.module, [alias], node.level)
            )
            self.add(name, Binding("import", ast.copy_location(one, node)))

    def on_scoping(self, node: ast.Global | ast.Nonlocal) -> None:
        self.scope.elsewhere.update(node.names)

    def on_match(self, node: ast.Match) -> None:
        names = self.scan(node.subject)
        for case in node.cases:
            self.pattern(case.pattern, Binding("value", node.subject, (), names))
            if case.guard is not None:
                self.scan(case.guard)
            self.statements(case.body)

    def pattern(self, pattern: ast.pattern, binding: Binding) -> None:
        if isinstance(pattern, ast.MatchValue):
            self.scan(pattern.value)
        name = getattr(pattern, "name", None) or getattr(pattern, "rest", None)
        if isinstance(name, str):
            self.add(name, binding)
        if not isinstance(pattern, (ast.MatchAs, ast.MatchOr)):
            binding = Binding("part", binding.node, (), binding.names)
        for child in ast.iter_child_nodes(pattern):
            if isinstance(child, ast.pattern):
                self.pattern(child, binding)

    def on_expression(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.scan(node.value)

    def bind(
        self, target: ast.expr, how: str, value: ast.expr, names: set[str], path: Path = ()
    ) -> None:
        if isinstance(target, ast.Name):
            self.add(target.id, Binding(how, value, path, names))
        elif isinstance(target, (ast.Tuple, ast.List)):
            self.unpack(target.elts, how, value, names, path)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, how, value, names, (*path, None))
        elif how != "value" or None in path:
            return
        elif isinstance(target, ast.Attribute):
            if isinstance(target.value, ast.Name):
                key = (target.value.id, target.attr)
                self.scope.attribute_stores.setdefault(key, []).append(_part(value, path))
        elif path:
            return
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            self.scope.operations.append(target)
            stored = (target.slice, value)
            self.scope.item_stores.setdefault(target.value.id, []).append(stored)
            self.store_names(target.value.id, names)

    def unpack(
        self, targets: list[ast.expr], how: str, value: ast.expr, names: set[str], path: Path
    ) -> None:
        after_star = False
        for position, target in enumerate(targets):
            if isinstance(target, ast.Starred):
                after_star = True
                self.bind(target, how, value, names, path)
            else:
                index = position - len(targets) if after_star else position
                self.bind(target, how, value, names, (*path, index))

    def store_names(self, container: str, names: set[str]) -> None:
        self.scope.stored_names.setdefault(container, set()).update(names)

    def add(self, name: str, binding: Binding) -> None:
        self.scope.bindings.setdefault(name, []).append(binding)

    def scan(self, root: ast.expr) -> set[str]:
        """Collect an expression's calls, walruses, yields and comprehensions; return its names.

        The set must not be changed, as bindings keep it.
        """
        names: set[str] = set()
        self.gather(root, names)
        self.scope.names |= names
        return names

    def gather(self, root: ast.AST, names: set[str]) -> None:
        stack: list[Any] = [root]
        while stack:
            node = stack.pop()
            kind = type(node)
            if kind is ast.Name:
                names.add(node.id)
            elif kind is ast.Attribute:
                stack.append(node.value)
                if node.attr == "ops":
                    names.add(OPERATORS)
            elif kind is ast.Call:
                names |= self.on_call(node)
            elif kind in _OPERATIONS:
                self.scope.operations.append(node)
                stack.extend(operands(node))
            elif kind is not ast.Constant:
                parts = _PARTS.get(kind)
                if parts is not None:
                    parts(node, stack)
                else:
                    self.on_rare(node, names, stack)

    def on_rare(self, node: ast.AST, names: set[str], stack: list[Any]) -> None:
        if isinstance(node, ast.Lambda):
            names.update(n.id for n in ast.walk(node.body) if isinstance(n, ast.Name))
            names.add(LAMBDA)
            stack.extend(d for d in (*node.args.defaults, *node.args.kw_defaults) if d)
        elif isinstance(node, _COMPREHENSIONS):
            self.on_comprehension(node, names)
        else:
            self.on_other(node, names)
            stack.extend(ast.iter_child_nodes(node))

    def on_call(self, node: ast.Call) -> set[str]:
        names: set[str] = set()
        self.scope.calls.append((node, names))
        func = node.func
        for part in (func, *node.args, *[k.value for k in node.keywords]):
            # Most arguments are names and constants.
            kind = type(part)
            if kind is ast.Name:
                names.add(part.id)  # type: ignore[attr-defined]
            elif kind is not ast.Constant:
                self.gather(part, names)
        is_method = isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name)
        if is_method and func.attr in ADDS and node.args:  # type: ignore[attr-defined]
            container: str = func.value.id  # type: ignore[attr-defined]
            many = func.attr in {"extend", "update"}  # type: ignore[attr-defined]
            value = ast.Starred(node.args[-1]) if many else node.args[-1]
            stored = (None, ast.copy_location(ast.List([value]), node))
            self.scope.item_stores.setdefault(container, []).append(stored)
            self.store_names(container, names)
        return names

    def on_comprehension(self, node: Comprehension, names: set[str]) -> None:
        inner = scope_of(node)
        self.scope.comprehensions.append(node)
        names |= inner.names
        # A walrus inside a comprehension binds in the function around it.
        for part in ast.walk(node):
            if isinstance(part, ast.NamedExpr) and not isinstance(self.scope.node, _COMPREHENSIONS):
                binding = Binding("value", part.value, (), frozenset(inner.names))
                self.add(part.target.id, binding)

    def on_other(self, node: ast.AST, names: set[str]) -> None:
        if isinstance(node, ast.NamedExpr):
            if not isinstance(self.scope.node, _COMPREHENSIONS):
                mentioned = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
                names |= mentioned
                self.add(node.target.id, Binding("value", node.value, (), frozenset(mentioned)))
        elif isinstance(node, ast.Subscript):
            self.scope.operations.append(node)
            if isinstance(node.slice, ast.Name):
                self.scope.keys.add(node.slice.id)
            elif not isinstance(node.slice, ast.Constant):
                keys = [n.id for n in ast.walk(node.slice) if isinstance(n, ast.Name)]
                self.scope.keys.update(keys)
        elif isinstance(node, (ast.Yield, ast.YieldFrom)):
            self.scope.is_generator = True
            if node.value is not None:
                value = ast.Starred(node.value) if isinstance(node, ast.YieldFrom) else node.value
                self.scope.yields.append(value)


# The parts of other common expressions, in the order of their fields: calls are kept in this order.
_PARTS: dict[type[ast.AST], Callable[[Any, list[Any]], None]] = {
    ast.Tuple: lambda node, stack: stack.extend(node.elts),
    ast.List: lambda node, stack: stack.extend(node.elts),
    ast.BoolOp: lambda node, stack: stack.extend(node.values),
    ast.IfExp: lambda node, stack: stack.extend((node.test, node.body, node.orelse)),
    ast.Starred: lambda node, stack: stack.append(node.value),
    ast.JoinedStr: lambda node, stack: stack.extend(node.values),
}


_OPERATIONS = frozenset((ast.BinOp, ast.Compare, ast.UnaryOp))


def operands(node: ast.BinOp | ast.Compare | ast.UnaryOp) -> list[ast.expr]:
    """What an expression computes with: `a`, `b` and `c` of `a + b * c`."""
    if type(node) is ast.Compare:
        return [node.left, *node.comparators]
    if type(node) is ast.UnaryOp:
        return [node.operand]
    found: list[ast.expr] = []
    stack: list[ast.expr] = [node]
    while stack:
        one = stack.pop()
        if type(one) is ast.BinOp:
            stack.append(one.left)
            stack.append(one.right)
        else:
            found.append(one)
    return found


def _part(value: ast.expr, path: Path) -> ast.expr:
    """What an unpacking assigns to an attribute: `made()[1]` in `a, self.b = made()`."""
    for index in path:
        value = ast.copy_location(ast.Subscript(value, ast.Constant(index)), value)
    return value


_HANDLERS: dict[type[ast.stmt], Callable[[_Collector, Any], None]] = {
    ast.FunctionDef: _Collector.on_define,
    ast.AsyncFunctionDef: _Collector.on_define,
    ast.ClassDef: _Collector.on_define,
    ast.Assign: _Collector.on_assign,
    ast.AnnAssign: _Collector.on_annotated,
    ast.AugAssign: _Collector.on_augmented,
    ast.For: _Collector.on_for,
    ast.AsyncFor: _Collector.on_for,
    ast.With: _Collector.on_with,
    ast.AsyncWith: _Collector.on_with,
    ast.Return: _Collector.on_return,
    ast.If: _Collector.on_if,
    ast.While: _Collector.on_if,
    ast.Try: _Collector.on_try,
    ast.Import: _Collector.on_import,
    ast.ImportFrom: _Collector.on_import,
    ast.Global: _Collector.on_scoping,
    ast.Nonlocal: _Collector.on_scoping,
    ast.Match: _Collector.on_match,
    ast.Expr: _Collector.on_expression,
}
if hasattr(ast, "TryStar"):  # Python 3.11 and later
    _HANDLERS[ast.TryStar] = _Collector.on_try
