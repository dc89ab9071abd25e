"""What calling a value does and returns."""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Callable, Hashable
from typing import Any

from ... import _compat
from ...model import MISSING
from .attributes import is_module_instance, known_arguments
from .containers import elements, method_result, opened
from .frames import (
    Called,
    Entered,
    Frame,
    Launched,
    Lost,
    Outcome,
    bind,
    context_key,
    defaults_of,
    generalized,
    parameter_unknown,
    without_numbers,
)
from .leaves import Leaves, only_tells
from .objects import (
    OP_MARK,
    class_attribute,
    describe,
    instance_attribute,
    is_c_function,
    is_instance,
    is_leaf,
    operator_name,
    owner_of,
    plain_function,
    wrapped,
)
from .reach import Reach, calls_a_parameter, carries
from .scopes import ADDS, scope_of
from .source import read_source
from .values import (
    ANY,
    NO_ARGUMENTS,
    NOTHING,
    UNKNOWN,
    UNKNOWN_ARGUMENTS,
    Arguments,
    Bound,
    Context,
    Instance,
    Known,
    Launch,
    Local,
    Maker,
    Method,
    Operator,
    Partial,
    Sequence,
    Table,
    Unknown,
    Value,
    Values,
    union,
)

# How often one function is read with other arguments before numbers and texts among them are
# forgotten, and how many frames one reading may take.
_CONTEXTS = 4
_FRAMES = 400
# A short function is soon read, and what it makes of a name may be `getattr(self, name)`.
_SHORT = 300
_SHORT_CONTEXTS = 64
_MOST_INSIDE = 64

LAUNCH_OF_UNKNOWN = Unknown("it looks like a launch of something known only when it runs")

# Methods that keep the function they are given: a list's, and those of a `torch.library.Library`.
_KEEPING = ADDS | {"impl", "define"}

# What `apply`, or the backward pass after it, runs.
_AUTOGRAD_PARTS = ("setup_context", "backward", "vjp", "jvp", "vmap")


class Reader(Leaves):
    """Follows calls from frame to frame."""

    def __init__(self, max_depth: int, root: Frame) -> None:
        super().__init__()
        self.root = root
        self.max_depth = max_depth
        self.frames: dict[Hashable, Frame] = {}
        self.contexts: dict[int, int] = {}
        self.default_values: dict[int, tuple[types.FunctionType, Callable[[str], Values]]] = {}
        self.reach = Reach()
        self.exhausted = False

    def is_of_interest(self, frame: Frame, node: ast.Call, names: set[str]) -> bool:
        """Whether a call may launch, call an operator, or be lost."""
        if self.interest.any_of(frame, names):
            return True
        func = node.func
        if type(func) is ast.Name:
            return func.id in frame.parameters
        return type(func) is ast.Subscript or _looks_like_run(node)

    def outcome(self, frame: Frame, node: ast.Call) -> Outcome:
        known = frame.outcomes.get(id(node))
        if known is not None:
            return known
        outcome = Outcome()
        callees = self.evaluate(frame, node.func)
        # What a kernel, an operator, an exception or a logger is given is of no interest; a
        # tensor's method takes nothing that could be called, save in what is written as a
        # function or a name.
        arguments = NO_ARGUMENTS
        for callee in callees:
            if not isinstance(callee, (Launch, Operator)) and not only_tells(callee):
                arguments = self.arguments(frame, node)
                break
        for callee in callees:
            if isinstance(callee, Unknown):
                lost = callee is UNKNOWN and _looks_like_run(node)
                given = NO_ARGUMENTS if getattr(node.func, "attr", "") in _KEEPING else arguments
                self.call_unknown(frame, LAUNCH_OF_UNKNOWN if lost else callee, given, outcome)
            else:
                cost = 0 if _is_wrapper_step(frame, node.func) else 1
                self.call(frame, callee, arguments, outcome, cost)
        frame.outcomes[id(node)] = outcome
        return outcome

    def decorated(self, frame: Frame, value: Value, decorators: list[ast.expr]) -> Values:
        """What a definition in a body binds; what its decorators run is not looked into."""
        values: Values = (value,)
        for decorator in reversed(decorators):
            outcome = Outcome()
            for callee in self.evaluate(frame, decorator):
                self.call(frame, callee, Arguments((values,)), outcome)
            values = self.results(outcome)
        return values

    def arguments(self, frame: Frame, node: ast.Call) -> Arguments:
        if not node.args and not node.keywords:
            return NO_ARGUMENTS
        positional: list[Values] = []
        keywords: dict[str, Values] = {}
        star = double = NOTHING
        names = frame.names
        for argument in node.args:
            if not isinstance(argument, ast.Starred):
                known = names.get(argument.id) if isinstance(argument, ast.Name) else None
                value = self.evaluate(frame, argument) if known is None else known
                if star:
                    star = union(star, value)
                else:
                    positional.append(value)
                continue
            found = self.evaluate(frame, argument.value)
            whole = opened(found[0]) if len(found) == 1 else None
            if isinstance(whole, Sequence) and not star:
                positional.extend(whole.items)
                star = whole.rest
            else:
                star = union(star, elements(found) or ANY)
        for keyword in node.keywords:
            found = self.evaluate(frame, keyword.value)
            if keyword.arg is not None:
                keywords[keyword.arg] = found
                continue
            for table in map(opened, found):
                if isinstance(table, Table):
                    keywords.update({k: v for k, v in table.items.items() if isinstance(k, str)})
                    double = union(double, table.rest)
                else:
                    double = union(double, ANY)
        return Arguments(tuple(positional), keywords, star, double)

    def results(self, outcome: Outcome) -> Values:
        if not outcome.frames and not outcome.idle:
            return tuple(outcome.values) or ANY
        returned = [self.returned(frame) for frame in outcome.frames]
        for caller, fn, arguments in outcome.idle:
            # A short one may return a text, which may be a key of a table of kernels.
            short = len(fn.__code__.co_code) < _SHORT
            inner = self.frame_of(caller, fn, arguments, 0) if short else None
            returned.append(ANY if inner is None else self.returned(inner))
        return union(tuple(outcome.values), *returned) or ANY

    def returned(self, frame: Frame) -> Values:
        """What a function returns; a generator, what it yields."""
        if frame.result is not None:
            return frame.result
        if frame.depth > self.max_depth:
            return (Unknown("it lies deeper than max_depth"),)
        frame.result = NOTHING
        scope = frame.scope
        if scope.is_generator:
            found = [self.evaluate(frame, ast.List([node])) for node in scope.yields]
            frame.result = (Sequence(rest=elements(union(*found))),)
            return frame.result
        for node in scope.returns:
            frame.result = union(frame.result, self.evaluate(frame, node))
        frame.result = frame.result or (Known(None),)
        return frame.result

    def entered(self, frame: Frame, node: ast.AST) -> Values:
        """What `with value as name` binds: a generator's yield, or the result of `__enter__`."""
        found = []
        for value in self.evaluate(frame, node):
            if isinstance(value, Sequence):
                found.append(elements((value,)))
            elif isinstance(value, Instance) or (
                isinstance(value, Known) and not is_leaf(value.obj)
            ):
                methods = self.attribute(frame, value, "__enter__", node)
                found += [self.run(frame, method, Arguments(), node) for method in methods]
                for method in self.attribute(frame, value, "__exit__", node):
                    self.run(frame, method, UNKNOWN_ARGUMENTS, node)
            else:
                found.append(ANY)
        return union(*found)

    def call(  # noqa: C901  # a case for each kind of value
        self, frame: Frame, callee: Value, arguments: Arguments, outcome: Outcome, cost: int = 1
    ) -> None:
        if isinstance(callee, Known):
            self.call_known(frame, callee.obj, arguments, outcome, cost)
        elif isinstance(callee, Launch):
            outcome.effects.append(Launched(callee.kernel))
        elif isinstance(callee, Bound):
            self.call(frame, callee.fn, arguments.after((callee.self,)), outcome, cost)
        elif isinstance(callee, Partial):
            self.call(frame, callee.fn, callee.arguments.extend(arguments), outcome, cost)
        elif isinstance(callee, Local):
            self.call_local(frame, callee, arguments, outcome)
        elif isinstance(callee, Operator):
            outcome.effects.append(Called(callee.name, None))
        elif isinstance(callee, Method):
            outcome.values.extend(method_result(callee, arguments.positional))
        elif isinstance(callee, Instance):
            self.call_instance(frame, callee, arguments, outcome, cost)
        elif isinstance(callee, Maker):
            outcome.values.append(Unknown("the kernel is made when the function runs"))
        elif isinstance(callee, Unknown):
            self.call_unknown(frame, callee, arguments, outcome)

    def call_unknown(
        self, frame: Frame, callee: Unknown, arguments: Arguments, outcome: Outcome
    ) -> None:
        if callee.why:
            outcome.effects.append(Lost(callee.why))
        if arguments is not NO_ARGUMENTS:
            self.hand(frame, arguments, outcome)
        outcome.values.extend(self.passed_through(arguments))

    def call_known(
        self, frame: Frame, obj: Any, arguments: Arguments, outcome: Outcome, cost: int
    ) -> None:
        name = operator_name(obj)
        if name is not None:
            marked = _compat.kernels.instance_dict(obj).get(OP_MARK)
            outcome.effects.append(Called(name, obj if marked is None else marked))
        elif is_instance(obj, types.FunctionType):
            self.call_function(frame, obj, arguments, outcome, cost)
        elif is_instance(obj, type):
            self.call_class(frame, obj, arguments, outcome)
        elif is_instance(obj, types.MethodType):
            self.call_method(frame, obj, arguments, outcome, cost)
        elif is_instance(obj, functools.partial):
            given = known_arguments(obj.args, obj.keywords).extend(arguments)
            self.call_known(frame, obj.func, given, outcome, cost)
        elif is_instance(obj, (staticmethod, classmethod)):
            self.call_known(frame, obj.__func__, arguments, outcome, cost)
        elif is_c_function(obj):
            self.call_c_function(frame, obj, arguments, outcome)
        else:
            self.call_object(frame, obj, arguments, outcome, cost)

    def call_method(
        self, frame: Frame, obj: types.MethodType, arguments: Arguments, outcome: Outcome, cost: int
    ) -> None:
        kernel = _compat.kernels.launched_kernel(obj.__self__)
        if kernel is not None and obj.__func__.__name__ in {"run", "warmup"}:
            if obj.__func__.__name__ == "run":
                outcome.effects.append(Launched(kernel))
            return
        given = arguments.after((Known(obj.__self__),))
        self.call_known(frame, obj.__func__, given, outcome, cost)

    def call_function(
        self,
        frame: Frame,
        fn: types.FunctionType,
        arguments: Arguments,
        outcome: Outcome,
        cost: int,
    ) -> None:
        if is_leaf(fn):
            self.call_leaf(frame, fn, arguments, outcome, cost)
            return
        if frame is not self.root and self.leads_nowhere(fn, arguments):
            outcome.idle.append((frame, fn, arguments))
            return
        inner = self.frame_of(frame, fn, arguments, cost)
        if inner is not None:
            outcome.effects.append(Entered(inner, cost))
            outcome.frames.append(inner)
            return
        below = wrapped(fn)
        if below is not None:
            self.call(frame, Known(below), arguments, outcome, 0)
        elif not self.exhausted:
            outcome.effects.append(Lost(f"{describe(fn)} has no source to read"))
            self.hand(frame, arguments, outcome)

    def leads_nowhere(self, fn: types.FunctionType, arguments: Arguments) -> bool:
        """Whether neither what a function mentions nor what it is given can launch anything."""
        unknown = False
        for group in arguments.every():
            if group is ANY:
                continue
            for value in group:
                if type(value) is Unknown:
                    unknown = unknown or bool(value.why)
                elif self.may_launch(value):
                    return False
        return not self.reach.leads_on(fn) and not (unknown and calls_a_parameter(fn))

    def may_launch(self, value: Value) -> bool:
        """Whether a function that is given a value may launch something through it."""
        if not carries(value):
            return False
        if isinstance(value, Known):
            return self.reach.leads_on(value.obj)
        if isinstance(value, Instance) and isinstance(value.cls, Known):
            inside = any(self.may_launch(v) for group in value.arguments.every() for v in group)
            return inside or self.reach.leads_on(value.cls.obj)
        return True

    def frame_of(
        self, caller: Frame, fn: types.FunctionType, arguments: Arguments, cost: int
    ) -> Frame | None:
        """The frame of a function called with certain arguments: one for each set of them."""
        source = read_source(fn.__code__, fn.__globals__)
        if source is None:
            return None
        depth = caller.depth + cost
        scope = scope_of(source.node)
        bound = bind(scope, arguments, self.defaults(fn), parameter_unknown)
        bound = without_numbers(bound, scope)
        if caller is self.root:
            _give_self(fn, bound)
        most = _SHORT_CONTEXTS if len(fn.__code__.co_code) < _SHORT else _CONTEXTS
        if self.contexts.get(id(fn), 0) > most:
            bound = generalized(bound)
        key = (id(fn), context_key(bound))
        known = self.frames.get(key)
        if known is None:
            if len(self.frames) >= _FRAMES:
                self.exhausted = True
                return None
            self.contexts[id(fn)] = self.contexts.get(id(fn), 0) + 1
            known = self.frames[key] = Frame(scope, fn, source.offset, depth, bound)
        known.depth = min(known.depth, depth)
        return known

    def defaults(self, fn: types.FunctionType) -> Callable[[str], Values]:
        known = self.default_values.get(id(fn))
        if known is None:
            known = self.default_values[id(fn)] = (fn, defaults_of(fn))
        return known[1]

    def call_local(
        self, frame: Frame, local: Local, arguments: Arguments, outcome: Outcome
    ) -> None:
        if isinstance(local.scope.node, ast.ClassDef):
            made = Instance(local, arguments)
            outcome.values.append(made)
            for method in self.class_member(local, "__init__", made):
                ignored = Outcome()
                self.call(frame, method, arguments, ignored)
                outcome.effects.extend(ignored.effects)
            return
        inner = self.local_frame(frame, local, arguments)
        outcome.effects.append(Entered(inner, 0))
        outcome.frames.append(inner)

    def local_frame(self, caller: Frame, local: Local, arguments: Arguments) -> Frame:
        """A nested function's frame; it is part of the text around it, and costs no depth."""
        node = local.scope.node
        home = local.frame
        bound: dict[str, Values] = {}
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            bound = bind(
                local.scope, arguments, self.written_defaults(home, node), parameter_unknown
            )
        if self.contexts.get(id(node), 0) > _CONTEXTS:
            bound = generalized(bound)
        key: Hashable = (id(node), id(home), context_key(bound))
        known = self.frames.get(key)
        if known is None:
            self.contexts[id(node)] = self.contexts.get(id(node), 0) + 1
            # Too many frames, and this one stands for all calls still to come.
            key = key if len(self.frames) < _FRAMES else (id(node), id(home))
            known = self.frames.setdefault(
                key, Frame(local.scope, home.fn, home.offset, caller.depth, bound, home)
            )
        known.depth = min(known.depth, caller.depth)
        return known

    def written_defaults(self, home: Frame, node: Any) -> Any:
        arguments: ast.arguments = node.args
        positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        pairs = dict(zip(reversed(positional), reversed(arguments.defaults), strict=False))
        keyword_only = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        pairs.update({a.arg: d for a, d in keyword_only if d is not None})
        return lambda name: self.evaluate(home, pairs[name]) if name in pairs else NOTHING

    def call_class(
        self, frame: Frame, cls: type[Any], arguments: Arguments, outcome: Outcome
    ) -> None:
        if is_leaf(cls):
            self.make_leaf(frame, cls, arguments, outcome)
            return
        carrying = any(carries(v) for group in arguments.every() for v in group)
        if not carrying and frame is not self.root and not self.reach.leads_on(cls):
            outcome.values.append(UNKNOWN)
            return
        # Objects made of objects made of objects: their insides are not told apart for ever.
        arguments = UNKNOWN_ARGUMENTS if arguments.size > _MOST_INSIDE else arguments
        made = Instance(Known(cls), arguments)
        outcome.values.append(made)
        for name in ("__new__", "__init__", "__post_init__"):
            method = class_attribute(cls, name)
            method = method.__func__ if is_instance(method, staticmethod) else method
            if not is_instance(method, types.FunctionType) or is_leaf(method):
                continue
            first: Value = Known(cls) if name == "__new__" else made
            given = arguments if name != "__post_init__" else Arguments()
            inner = self.frame_of(frame, method, given.after((first,)), 1)
            # A dataclass's `__init__` is made up, and has no source.
            if inner is not None:
                outcome.effects.append(Entered(inner))

    def call_instance(
        self, frame: Frame, value: Instance, arguments: Arguments, outcome: Outcome, cost: int
    ) -> None:
        name = "__call__"
        if isinstance(value.cls, Known):
            stored = class_attribute(value.cls.obj, "__call__")
            if stored is MISSING:
                return
            if is_instance(stored, types.FunctionType) and is_leaf(stored):
                name = "forward"
        for method in self.attribute(frame, value, name, frame.scope.node):
            self.call(frame, method, arguments, outcome, cost)

    def call_object(
        self, frame: Frame, obj: Any, arguments: Arguments, outcome: Outcome, cost: int
    ) -> None:
        if _compat.kernels.is_traced_wrapper(obj):
            outcome.effects.append(Launched(obj.kernel))
            return
        if _compat.kernels.is_kernel(obj):
            return
        stored = class_attribute(type(obj), "__call__")
        readable = is_instance(stored, types.FunctionType) and not is_leaf(stored)
        if is_module_instance(obj) and not readable:
            self.call_module(frame, obj, arguments, outcome)
            return
        if readable:
            self.call_known(frame, stored, arguments.after((Known(obj),)), outcome, cost)
            return
        below = wrapped(obj)
        if below is None and is_instance(stored, (staticmethod, classmethod)):
            below = stored.__func__
        if below is not None:
            self.call_known(frame, below, arguments, outcome, 0)
        elif stored is not MISSING and not is_leaf(obj):
            outcome.effects.append(
                Lost(f"{type(obj).__qualname__} is called in code without source")
            )
            self.hand(frame, arguments, outcome)
        elif stored is not MISSING:
            self.hand(frame, arguments, outcome)

    def call_module(
        self, frame: Frame, module: Any, arguments: Arguments, outcome: Outcome
    ) -> None:
        """A module runs its `forward`; one of torch's own, the modules it holds."""
        forward = instance_attribute(module, "forward")
        if forward is not MISSING:
            self.call(frame, Known(forward), arguments, outcome)
            return
        forward = class_attribute(type(module), "forward")
        if is_instance(forward, types.FunctionType) and not is_leaf(forward):
            self.call_known(frame, forward, arguments.after((Known(module),)), outcome, 1)
            return
        held = _compat.kernels.instance_dict(module).get("_modules")
        for inner in held.values() if is_instance(held, dict) else ():
            if is_module_instance(inner):
                self.call_module(frame, inner, UNKNOWN_ARGUMENTS, outcome)

    def call_c_function(
        self, frame: Frame, obj: Any, arguments: Arguments, outcome: Outcome
    ) -> None:
        if is_leaf(obj):
            self.call_leaf_builtin(frame, obj, arguments, outcome)
            return
        outcome.effects.append(Lost(f"{describe(obj)} is a C function"))
        self.hand(frame, arguments, outcome)

    def apply_autograd(
        self, frame: Frame, cls: type[Any], arguments: Arguments, outcome: Outcome
    ) -> None:
        """`X.apply(...)`: `forward` now, and what the backward pass will run."""
        setup = _function(class_attribute(cls, "setup_context"))
        forward = _function(class_attribute(cls, "forward"))
        if forward is None or is_leaf(forward):
            return
        split = setup is not None and not is_leaf(setup)
        given = arguments if split else arguments.after(ANY)
        entered = self.frame_of(frame, forward, given, 1)
        if entered is None:
            self.call_function(frame, forward, given, outcome, 1)
            return
        outcome.effects.append(Entered(entered))
        outcome.frames.append(entered)
        # Below a decorator's wrapper, which only hands `ctx` on.
        writes = plain_function(setup if split else forward)
        writes = writes if is_instance(writes, types.FunctionType) else forward
        writer = self.frame_of(frame, writes, UNKNOWN_ARGUMENTS if split else given, 1)
        context = Context((writer,) if writer is not None else ())
        for name in _AUTOGRAD_PARTS:
            part = _function(class_attribute(cls, name))
            if part is None or is_leaf(part):
                continue
            inner = self.frame_of(frame, part, UNKNOWN_ARGUMENTS.after((context,)), 1)
            if inner is not None:
                outcome.effects.append(Entered(inner))


def _function(stored: Any) -> types.FunctionType | None:
    """The function of a static method, below torch's own decorators."""
    for _ in range(8):
        if is_instance(stored, (staticmethod, classmethod)):
            stored = stored.__func__
        elif is_instance(stored, types.FunctionType) and is_leaf(stored):
            below = wrapped(stored)
            if below is None:
                return stored
            stored = below
        else:
            break
    return stored if is_instance(stored, types.FunctionType) else None


def _give_self(fn: types.FunctionType, bound: dict[str, Values]) -> None:
    """A method read by itself has an instance of its class for `self`."""
    cls = owner_of(fn)
    if cls is None or not fn.__code__.co_argcount:
        return
    first = fn.__code__.co_varnames[0]
    stored = class_attribute(cls, fn.__name__)
    if is_instance(stored, staticmethod) or not all(isinstance(v, Unknown) for v in bound[first]):
        return
    is_class = is_instance(stored, classmethod)
    bound[first] = (Known(cls) if is_class else Instance(Known(cls), UNKNOWN_ARGUMENTS),)


def _is_wrapper_step(frame: Frame, func: ast.expr) -> bool:
    """Whether a call only goes from a wrapper to what it wraps, which costs no depth."""
    if isinstance(func, ast.Name):
        if frame.parent is None:
            return func.id in frame.fn.__code__.co_freevars
        around: Frame | None = frame.parent
        while around is not None:
            if func.id in around.parameters:
                return True
            around = around.parent
        return False
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
        is_self = frame.scope.parameters[:1] == (func.value.id,)
        return is_self and frame.scope.name == "__call__"
    return False


def _looks_like_run(node: ast.Call) -> bool:
    """`something.run(..., grid=...)`."""
    if type(node.func) is not ast.Attribute or node.func.attr != "run":
        return False
    return any(keyword.arg == "grid" for keyword in node.keywords)
