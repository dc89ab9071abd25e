"""What a function's text binds, calls and returns, scope by scope, by Python's scoping."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
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
    node: Any
    names: Collection[str] = frozenset()
    path: Path = ()


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
    # The walruses of a comprehension.
    walruses: list[ast.NamedExpr] = field(default_factory=list)
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
    # Whether all that it returns is the result of a comparison, which reading does not follow.
    only_compares: bool = False
    # The names in it that it does not bind.
    outer: frozenset[str] = frozenset()
    # The parameters that it binds again or adds to.
    changed: frozenset[str] = frozenset()
    # What `interest` has found out about the origins of calls and of names.
    call_roots: list[tuple[ast.Call, frozenset[str] | None]] | None = None
    roots: dict[str, frozenset[str] | None] = field(default_factory=dict)
    calls_by_interest: dict[frozenset[str], list[ast.Call]] = field(default_factory=dict)
    # Whether a name is only ever a text, by the name.
    texts: dict[str, bool] = field(default_factory=dict)
    # What `alternatives` has found out about the calls, by the id of their nodes.
    steps: dict[int, tuple[bool, int]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return getattr(self.node, "name", "<lambda>")


@cached_by_identity
def scope_of(node: Node) -> Scope:
    """The scope of a tree, collected once."""
    return _Collector(node).scope


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
ADDS = frozenset({"append", "add", "insert", "appendleft", "extend", "update", "setdefault"})


class _Collector(ast.NodeVisitor):
    """Walks one scope's text, without entering nested functions; expressions without recursion."""

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
        self.scope.changed = frozenset(
            name
            for name in self.scope.parameters
            if name in self.scope.bindings or name in self.scope.item_stores
        )
        local = (self.scope.bindings.keys() - self.scope.elsewhere).union(self.scope.parameters)
        self.scope.outer = frozenset((self.scope.names | self.scope.elsewhere) - local)
        returns = self.scope.returns
        self.scope.only_compares = bool(returns) and all(map(_is_comparison, returns))

    def parameters(self, arguments: ast.arguments) -> None:
        scope = self.scope
        scope.positional = tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args))
        scope.listed = (*scope.positional, *(a.arg for a in arguments.kwonlyargs))
        scope.vararg = arguments.vararg.arg if arguments.vararg else None
        scope.kwarg = arguments.kwarg.arg if arguments.kwarg else None
        scope.parameters = (*scope.listed, *filter(None, (scope.vararg, scope.kwarg)))

    def comprehend(self, node: Comprehension) -> None:
        for generator in node.generators:
            names = self.scan(generator.iter)
            self.bind(generator.target, Binding("element", generator.iter, names))
            for test in generator.ifs:
                self.scan(test)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self.scan(part)

    def statements(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            self.visit(statement)

    def generic_visit(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.scan(child)
            else:
                self.visit(child)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.visit_ClassDef(node)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.scan(default)

    def visit_ClassDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self.add(node.name, Binding("define", node))
        for decorator in node.decorator_list:
            self.scan(decorator)

    def visit_Expr(self, node: ast.Expr) -> None:
        self.scan(node.value)

    def visit_If(self, node: ast.If) -> None:
        self.scan(node.test)
        self.statements(node.body)
        self.statements(node.orelse)

    def visit_Assign(self, node: ast.Assign) -> None:
        names = self.scan(node.value)
        for target in node.targets:
            self.bind(target, Binding("value", node.value, names))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.bind(node.target, Binding("value", node.value, self.scan(node.value)))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.scope.operations.append(node)
        names = self.scan(node.value)
        if isinstance(node.target, ast.Name):
            self.store(node.target.id, None, node.value, names)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.bind(node.target, Binding("element", node.iter, self.scan(node.iter)))
        self.statements(node.body)
        self.statements(node.orelse)

    def visit_withitem(self, node: ast.withitem) -> None:
        names = self.scan(node.context_expr)
        self.scope.entered.append(node.context_expr)
        if node.optional_vars is not None:
            self.bind(node.optional_vars, Binding("enter", node.context_expr, names))

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            self.scope.returns.append(node.value)
            self.scan(node.value)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.add(node.name, Binding("unknown", node))
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            self.add(name, Binding("import", ast.copy_location(ast.Import([alias]), node)))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            one = ast.ImportFrom(node.module, [alias], node.level)
            self.add(alias.asname or alias.name, Binding("import", ast.copy_location(one, node)))

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        self.scope.elsewhere.update(node.names)

    def visit_Match(self, node: ast.Match) -> None:
        names = self.scan(node.subject)
        for case in node.cases:
            self.pattern(case.pattern, Binding("value", node.subject, names))
            if case.guard is not None:
                self.scan(case.guard)
            self.statements(case.body)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815  # `ast` gives the name
    visit_AsyncFor = visit_For  # noqa: N815
    visit_Nonlocal = visit_Global  # noqa: N815

    def pattern(self, pattern: ast.pattern, binding: Binding) -> None:
        if isinstance(pattern, ast.MatchValue):
            self.scan(pattern.value)
        name = getattr(pattern, "name", None) or getattr(pattern, "rest", None)
        if isinstance(name, str):
            self.add(name, binding)
        if not isinstance(pattern, (ast.MatchAs, ast.MatchOr)):
            binding = replace(binding, how="part")
        for child in ast.iter_child_nodes(pattern):
            if isinstance(child, ast.pattern):
                self.pattern(child, binding)

    def bind(self, target: ast.expr, binding: Binding) -> None:
        value, path = binding.node, binding.path
        if isinstance(target, ast.Name):
            self.add(target.id, binding)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self.unpack(target.elts, binding)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, replace(binding, path=(*path, None)))
        elif binding.how != "value" or None in path:
            return
        elif isinstance(target, ast.Attribute):
            if isinstance(target.value, ast.Name):
                key = (target.value.id, target.attr)
                self.scope.attribute_stores.setdefault(key, []).append(_part(value, path))
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) and not path:
            self.scope.operations.append(target)
            self.store(target.value.id, target.slice, value, binding.names)

    def unpack(self, targets: list[ast.expr], binding: Binding) -> None:
        after_star = False
        for position, target in enumerate(targets):
            if isinstance(target, ast.Starred):
                after_star = True
                self.bind(target, binding)
            else:
                index = position - len(targets) if after_star else position
                self.bind(target, replace(binding, path=(*binding.path, index)))

    def store(
        self, container: str, key: ast.expr | None, value: ast.expr, names: Collection[str]
    ) -> None:
        self.scope.item_stores.setdefault(container, []).append((key, value))
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

    def gather(self, root: ast.AST, names: set[str]) -> None:  # noqa: C901  # a case for each kind
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
            elif kind is ast.Lambda:
                names |= _names_in(node.body) | {LAMBDA}
                stack.extend(d for d in (*node.args.defaults, *node.args.kw_defaults) if d)
            elif kind is ast.Subscript:
                self.scope.operations.append(node)
                self.scope.keys |= _names_in(node.slice)
                stack += node.value, node.slice
            elif kind is ast.Tuple or kind is ast.List:
                stack += node.elts
            elif kind in _COMPREHENSIONS:
                self.on_comprehension(node, names)
            elif kind is not ast.Constant:
                self.on_other(node)
                stack.extend(ast.iter_child_nodes(node))

    def on_call(self, node: ast.Call) -> set[str]:
        names: set[str] = set()
        self.scope.calls.append((node, names))
        func = node.func
        for part in (func, *node.args, *[k.value for k in node.keywords]):
            self.gather(part, names)
        if (
            isinstance(func, ast.Attribute)
            and isinstance(func.value, ast.Name)
            and func.attr in ADDS
            and node.args
        ):
            many = func.attr in {"extend", "update"}
            value = ast.Starred(node.args[-1]) if many else node.args[-1]
            added = ast.copy_location(ast.List([value]), node)
            self.store(func.value.id, None, added, names)
        return names

    def on_comprehension(self, node: Comprehension, names: set[str]) -> None:
        inner = scope_of(node)
        self.scope.comprehensions.append(node)
        names |= inner.names
        # A walrus inside a comprehension binds in the function around it.
        for part in inner.walruses:
            if isinstance(self.scope.node, _COMPREHENSIONS):
                self.scope.walruses.append(part)
            else:
                self.add(part.target.id, Binding("value", part.value, inner.names))

    def on_other(self, node: ast.AST) -> None:
        if isinstance(node, ast.NamedExpr):
            if isinstance(self.scope.node, _COMPREHENSIONS):
                self.scope.walruses.append(node)
            else:
                binding = Binding("value", node.value, _names_in(node.value))
                self.add(node.target.id, binding)
        elif isinstance(node, (ast.Yield, ast.YieldFrom)):
            self.scope.is_generator = True
            if node.value is not None:
                value = ast.Starred(node.value) if isinstance(node, ast.YieldFrom) else node.value
                self.scope.yields.append(value)


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


def _is_comparison(node: ast.expr) -> bool:
    if isinstance(node, ast.BoolOp):
        return all(map(_is_comparison, node.values))
    return isinstance(node, ast.Compare)


def _part(value: ast.expr, path: Path) -> ast.expr:
    """What an unpacking assigns to an attribute: `made()[1]` in `a, self.b = made()`."""
    for index in path:
        value = ast.copy_location(ast.Subscript(value, ast.Constant(index)), value)
    return value


def _names_in(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Constant):
        return set()
    if isinstance(node, ast.Name):
        return {node.id}
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
