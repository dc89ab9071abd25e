"""What an expression may stand for: names by Python's scoping, attributes and items statically."""

from __future__ import annotations

import abc
import ast
import itertools
import sys
from collections.abc import Callable, Hashable
from typing import Any

from ... import _compat
from ...model import MISSING
from .attributes import Attributes
from .containers import ITEM, concatenated, elements, item, opened, stored, unpacked
from .frames import Frame, Outcome
from .interest import Interest, is_text
from .objects import (
    builtin_named,
    is_installed,
    is_instance,
    is_leaf_module,
    relative_name,
)
from .scopes import Binding, Operation, scope_of
from .values import (
    ANY,
    NOTHING,
    UNKNOWN,
    Arguments,
    Instance,
    Known,
    Launch,
    Local,
    Sequence,
    Table,
    Unknown,
    Value,
    Values,
    constants,
    union,
)

# Expressions inside expressions and calls inside calls; deeper ones are not known.
_DEEPEST = 60
# How many expressions one reading evaluates: some hundred functions' worth. A program that takes
# more is reported, not read for seconds.
_FUEL = 20_000


class Evaluator(Attributes, abc.ABC):
    """Evaluates expressions of frames; what calls do is for the class below this one."""

    def __init__(self) -> None:
        super().__init__()
        self.interest = Interest()
        self.nesting = 0
        self.fuel = _FUEL

    @abc.abstractmethod
    def outcome(self, frame: Frame, node: ast.Call) -> Outcome: ...

    @abc.abstractmethod
    def decorated(self, frame: Frame, value: Value, decorators: list[ast.expr]) -> Values: ...

    @abc.abstractmethod
    def entered(self, frame: Frame, node: ast.AST) -> Values: ...

    @abc.abstractmethod
    def operate(self, frame: Frame, node: Operation) -> Values: ...

    def evaluate(self, frame: Frame, node: ast.AST) -> Values:
        kind = type(node)
        if kind is ast.Name:
            name: str = node.id  # type: ignore[attr-defined]
            found = frame.names.get(name)
            return self.lookup(frame, name) if found is None else found
        handler = _EXPRESSIONS.get(kind)
        if handler is None or self.nesting > _DEEPEST or self.fuel <= 0:
            return ANY
        self.fuel -= 1
        if kind is ast.Constant:
            return (Known(node.value),)  # type: ignore[attr-defined]
        self.nesting += 1
        try:
            return handler(self, frame, node)
        finally:
            self.nesting -= 1

    def lookup(self, frame: Frame, name: str) -> Values:
        """A name as the code at a frame sees it."""
        known = frame.names.get(name)
        if known is not None:
            return known
        around: Frame | None = frame
        while around is not None:
            scope = around.scope
            # A class's names are not seen by the functions in it.
            visible = around is frame or not isinstance(scope.node, ast.ClassDef)
            if visible and (name in scope.bindings or name in around.parameters):
                here = self.local(around, name)
                if name not in scope.elsewhere:
                    return here
                return union(here, self.outer(around, name))
            if around.parent is None:
                found = frame.names[name] = self.outside(around, name)
                return found
            around = around.parent
        return ANY

    def outer(self, frame: Frame, name: str) -> Values:
        parent = frame.parent
        return self.outside(frame, name) if parent is None else self.lookup(parent, name)

    def outside(self, frame: Frame, name: str) -> Values:
        """A name that a function takes from its closure, its module or the builtins."""
        fn = frame.fn
        free = fn.__code__.co_freevars
        found: Any
        if name in free:
            try:
                found = (fn.__closure__ or ())[free.index(name)].cell_contents
            except ValueError:
                found = MISSING
        else:
            found = fn.__globals__.get(name, MISSING)
            found = builtin_named(name) if found is MISSING else found
        if found is MISSING:
            return (Unknown(f"'{name}' is not bound yet", sticky=True),)
        values = (self.interest.known(found),)
        return (
            values
            if name not in frame.scope.item_stores
            else self.after_stores(frame, name, values)
        )

    def local(self, frame: Frame, name: str) -> Values:
        known = frame.names.get(name)
        if known is not None:
            return known
        bindings = frame.scope.bindings.get(name, ())
        of_interest = name in frame.parameters or self.interest.has(frame, name)
        if not of_interest and not is_text(bindings):
            frame.names[name] = ANY
            return ANY
        # A name that its own value mentions is, inside it, what was found so far.
        found = frame.names[name] = frame.parameters.get(name, NOTHING)
        for binding in bindings:
            more = self.bound(frame, binding)
            found = frame.names[name] = union(found, more) if found else more
        if name in frame.scope.item_stores:
            found = frame.names[name] = self.after_stores(frame, name, found)
        return found

    def after_stores(self, frame: Frame, name: str, values: Values) -> Values:
        stores = frame.scope.item_stores.get(name)
        if not stores or all(opened(v) is None for v in values):
            return values
        extra: list[tuple[Values | None, Values]] = []
        for key, value in stores:
            found = self.evaluate(frame, value)
            if key is None:  # an append, written as a list, or `items += more`
                extra.append((None, elements(found)))
            else:
                extra.append((self.evaluate(frame, key), found))
        return stored(values, extra)

    def bound(self, frame: Frame, binding: Binding) -> Values:
        node = binding.node
        if binding.how == "value":
            found = self.evaluate(frame, node)
            return unpacked(found, binding.path) if binding.path else found
        if binding.how == "element":
            return unpacked(elements(self.evaluate(frame, node)), binding.path)
        if binding.how == "enter":
            return unpacked(self.entered(frame, node), binding.path)
        if binding.how == "part":
            return elements(self.evaluate(frame, node))
        if binding.how == "define":
            assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            return self.decorated(frame, Local(scope_of(node), frame), node.decorator_list)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return self.imported(frame, node)
        return ANY

    def imported(self, frame: Frame, node: ast.Import | ast.ImportFrom) -> Values:
        """What an import inside a body binds, if the module is loaded: nothing is imported here."""
        alias = node.names[0]
        if isinstance(node, ast.Import):
            return _loaded(alias.name if alias.asname else alias.name.partition(".")[0])
        home = node.module or ""
        if node.level:
            home = relative_name(frame.fn, home, node.level) or home
        module = sys.modules.get(home)
        if module is None:
            return _loaded(home)
        found = vars(module).get(alias.name, MISSING)
        if found is not MISSING:
            return (Known(found),)
        return _loaded(f"{home}.{alias.name}")

    def on_constant(self, frame: Frame, node: ast.Constant) -> Values:  # noqa: ARG002  # a handler
        return (Known(node.value),)

    def on_attribute(self, frame: Frame, node: ast.Attribute) -> Values:
        name = node.attr
        owners = self.evaluate(frame, node.value)
        stored = self.stored_attribute(frame, node) if type(node.value) is ast.Name else NOTHING
        if owners is ANY:
            return stored or ANY
        if not stored and len(owners) == 1 and owners[0] is UNKNOWN:
            return ANY
        if name.startswith("__") and not name.endswith("__"):
            name = _mangled(frame, name)
        if len(owners) == 1 and not stored:
            return self.attribute(frame, owners[0], name, node)
        return union(*[self.attribute(frame, value, name, node) for value in owners], stored)

    def stored_attribute(self, frame: Frame, node: ast.Attribute) -> Values:
        """`self.k = value` in the same function as `self.k`."""
        around: Frame | None = frame
        while around is not None:
            if around.scope.attribute_stores:
                assert isinstance(node.value, ast.Name)
                owner = node.value.id
                stores = around.scope.attribute_stores.get((owner, node.attr))
                if stores:
                    return self.stored_values(around, f"{owner}.{node.attr}", stores)
            around = around.parent
        return NOTHING

    def stored_values(self, frame: Frame, key: str, stores: list[ast.expr]) -> Values:
        """The union of what is stored; inside a stored value itself, what was found so far."""
        found = frame.names.get(key)
        if found is None:
            found = frame.names[key] = NOTHING
            for value in stores:
                found = frame.names[key] = union(found, self.evaluate(frame, value))
        return found

    def on_subscript(self, frame: Frame, node: ast.Subscript) -> Values:
        bases = self.evaluate(frame, node.value)
        return union(*(self.subscript(frame, base, node) for base in bases)) or (ITEM,)

    def subscript(self, frame: Frame, base: Value, node: ast.Subscript) -> Values:
        container = opened(base)
        if container is not None:
            if isinstance(node.slice, ast.Slice):
                return (_slice(container),)
            return item(container, self.evaluate(frame, node.slice))
        if isinstance(base, Unknown):
            return (base if base.why else ITEM,)
        if isinstance(base, Known):
            kernel = _compat.kernels.launched_kernel(base.obj)
            if kernel is not None:
                return (Launch(kernel),)
            if is_instance(base.obj, type) or base.obj is None:
                return (base,) if base.obj is not None else NOTHING
        return self.own_item(frame, base, node)

    def own_item(self, frame: Frame, base: Value, node: ast.Subscript) -> Values:
        """`thing[grid]` of an object with a `__getitem__` of its own, or a chain of `fn`."""
        if isinstance(base, Instance):
            for value in self.attribute(frame, base, "fn", node):
                kernel = (
                    _compat.kernels.launched_kernel(value.obj) if isinstance(value, Known) else None
                )
                if kernel is not None:
                    return (Launch(kernel),)
        getters = self.attribute(frame, base, "__getitem__", node)
        index = self.evaluate(frame, node.slice)
        found = [self.run(frame, getter, Arguments((index,)), node) for getter in getters]
        return union(*found) or (ITEM,)

    def on_call(self, frame: Frame, node: ast.Call) -> Values:
        return self.results(self.outcome(frame, node))

    def on_either(self, frame: Frame, node: ast.IfExp) -> Values:
        return union(self.evaluate(frame, node.body), self.evaluate(frame, node.orelse))

    def on_bool(self, frame: Frame, node: ast.BoolOp) -> Values:
        return union(*(self.evaluate(frame, value) for value in node.values))

    def on_inner(self, frame: Frame, node: ast.NamedExpr | ast.Await) -> Values:
        return self.evaluate(frame, node.value)

    def on_lambda(self, frame: Frame, node: ast.Lambda) -> Values:
        return (Local(scope_of(node), frame),)

    def on_binary(self, frame: Frame, node: ast.BinOp) -> Values:
        found = self.operate(frame, node)
        if found:
            return found
        if not isinstance(node.op, (ast.Add, ast.BitOr)):
            return ANY
        left = self.evaluate(frame, node.left)
        if left == ANY:
            return ANY
        return concatenated(left, self.evaluate(frame, node.right))

    def on_text(self, frame: Frame, node: ast.JoinedStr) -> Values:
        """An f-string of known parts, as `getattr(ops, f"{kind}_kernel")` has."""
        choices: list[list[str]] = []
        for part in node.values:
            value = part.value if isinstance(part, ast.FormattedValue) else part
            if isinstance(part, ast.FormattedValue) and part.format_spec is not None:
                return ANY
            known = constants(self.evaluate(frame, value))
            if known is None:
                return ANY
            choices.append([str(k) for k in known])
        texts = ["".join(parts) for parts in itertools.islice(itertools.product(*choices), 64)]
        return tuple(Known(text) for text in texts)

    def on_sequence(self, frame: Frame, node: ast.List | ast.Tuple | ast.Set) -> Values:
        items: list[Values] = []
        rest: Values = NOTHING
        for element in node.elts:
            inside = element.value if isinstance(element, ast.Starred) else element
            starred = inside is not element
            found = self.evaluate(frame, inside)
            whole = opened(found[0]) if starred and len(found) == 1 else None
            if isinstance(whole, Sequence) and not rest:
                items.extend(whole.items)
                rest = whole.rest
            elif starred:
                rest = union(rest, elements(found))
            elif rest:
                rest = union(rest, found)
            else:
                items.append(found)
        return (Sequence(tuple(items), rest),)

    def on_table(self, frame: Frame, node: ast.Dict) -> Values:
        items: dict[Hashable, Values] = {}
        rest: Values = NOTHING
        for key, value in zip(node.keys, node.values, strict=True):
            found = self.evaluate(frame, value)
            known = constants(self.evaluate(frame, key)) if key is not None else None
            if known is not None:
                items.update((k, found) for k in known)
            elif key is not None:
                rest = union(rest, found)
            else:
                for table in map(opened, found):
                    if isinstance(table, Table):
                        items.update(table.items)
                        rest = union(rest, table.rest)
        return (Table(items, rest),)

    def on_comprehension(self, frame: Frame, node: ast.ListComp) -> Values:
        inner = self.comprehension(frame, node)
        return (Sequence(rest=self.evaluate(inner, node.elt)),)

    def on_table_comprehension(self, frame: Frame, node: ast.DictComp) -> Values:
        inner = self.comprehension(frame, node)
        found = self.evaluate(inner, node.value)
        known = constants(self.evaluate(inner, node.key))
        if known is not None and len(found) == 1:
            return (Table(dict.fromkeys(known, found)),)
        return (Table(rest=found),)

    def comprehension(self, frame: Frame, node: Any) -> Frame:
        inner = frame.nested.get(id(node))
        if inner is None:
            inner = Frame(scope_of(node), frame.fn, frame.offset, frame.depth, {}, frame)
            frame.nested[id(node)] = inner
        return inner


def _slice(container: Sequence | Table) -> Value:
    if isinstance(container, Table):
        return UNKNOWN
    return Sequence(rest=union(*container.items, container.rest))


def _loaded(name: str) -> Values:
    module = sys.modules.get(name)
    if module is not None:
        return (Known(module),)
    if is_leaf_module(name) or not is_installed(name.partition(".")[0]):
        return ANY
    return (Unknown(f"'{name}' is not imported yet", sticky=True),)


def _mangled(frame: Frame, name: str) -> str:
    path = frame.fn.__qualname__.split(".")
    return f"_{path[-2].lstrip('_')}{name}" if len(path) > 1 else name


_EXPRESSIONS: dict[type[ast.AST], Callable[[Evaluator, Frame, Any], Values]] = {
    ast.Constant: Evaluator.on_constant,
    ast.Attribute: Evaluator.on_attribute,
    ast.Subscript: Evaluator.on_subscript,
    ast.Call: Evaluator.on_call,
    ast.IfExp: Evaluator.on_either,
    ast.BoolOp: Evaluator.on_bool,
    ast.NamedExpr: Evaluator.on_inner,
    ast.Await: Evaluator.on_inner,
    ast.Lambda: Evaluator.on_lambda,
    ast.BinOp: Evaluator.on_binary,
    ast.JoinedStr: Evaluator.on_text,
    ast.List: Evaluator.on_sequence,
    ast.Tuple: Evaluator.on_sequence,
    ast.Set: Evaluator.on_sequence,
    ast.Dict: Evaluator.on_table,
    ast.ListComp: Evaluator.on_comprehension,
    ast.SetComp: Evaluator.on_comprehension,
    ast.GeneratorExp: Evaluator.on_comprehension,
    ast.DictComp: Evaluator.on_table_comprehension,
}
