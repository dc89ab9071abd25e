"""What calling a value does and returns."""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Callable
from typing import Any

from ... import _compat
from ...model import MISSING
from .alternatives import condition, step_of
from .attributes import AttributeResolver
from .autograd_calls import apply_autograd, is_autograd_apply
from .containers import method_result, opened
from .expressions import listed_values
from .frame_table import FrameTable
from .frames import (
    IDLE,
    Call,
    CallOutcome,
    Entered,
    Frame,
    Instance,
    Launched,
    Local,
    Lost,
    NestedCall,
)
from .interest import is_text, looks_like_run
from .leaf_calls import (
    Role,
    call_leaf,
    call_leaf_builtin,
    hand_over,
    make_leaf,
    passed_through,
    role_of,
)
from .machine import Machine
from .objects import (
    C_FUNCTIONS,
    OP_MARK,
    applied_class,
    class_attribute,
    describe,
    instance_attribute,
    is_instance,
    is_leaf,
    is_module_instance,
    is_registered_op,
    operator_name,
    wrapped,
)
from .reach import Reach, any_carries, calls_a_parameter, carries
from .receivers import serves_many
from .scopes import ADDS
from .values import (
    ANY,
    NO_ARGUMENTS,
    NONE,
    NOTHING,
    UNKNOWN,
    UNKNOWN_ARGUMENTS,
    Arguments,
    BoundMethod,
    Known,
    LaunchValue,
    Method,
    OperatorValue,
    Partial,
    TableValue,
    Unknown,
    Value,
    Values,
    known_arguments,
    union,
)

# An object made of objects made of objects is not told from others of its class beyond this size.
_MOST_INSIDE = 80

_LAUNCH_OF_UNKNOWN = Unknown("it looks like a launch of something known only when it runs")

# Methods that keep the function they are given: a list's, and those of a `torch.library.Library`.
_KEEPING = ADDS | {"impl", "define"}
# Those of a container that return nothing.
_ADDING = ADDS - {"setdefault"}
_REPORTS, _OPAQUE = Role.REPORTS, Role.OPAQUE


class CallTable:
    """What each kind of value does when it is called."""

    def __init__(self, machine: Machine, frames: FrameTable, attributes: AttributeResolver) -> None:
        self.machine = machine
        self.frames = frames
        self.attributes = attributes
        self.reach = Reach()

    def outcome(self, frame: Frame, node: ast.Call) -> CallOutcome:
        """What a call expression does; whoever asks has not found it in `frame.outcomes`."""
        func = node.func
        callees = frame.names.get(func.id) if type(func) is ast.Name else None
        if callees is None:
            callees = self.machine.evaluate(frame, func)
        idle = False
        if len(callees) == 1:
            callee = callees[0]
            kind = type(callee)
            if kind is Known or kind is BoundMethod:
                role = callee.role or self._role_of(callee)  # type: ignore[arg-type]
                idle = role is _REPORTS or (role is _OPAQUE and self._is_idle(frame, node))
            elif callee is UNKNOWN:
                idle = not looks_like_run(node) and self._is_idle(frame, node)
        outcome = IDLE if idle else self._work_out(frame, node, callees)
        frame.outcomes[node] = outcome
        return outcome

    def _role_of(self, callee: Known | BoundMethod) -> Role:
        role = role_of(callee)
        if role is Role.OTHER and type(callee) is Known and callee.obj is not None:
            how = callee.how = self._how(callee.obj)
            if how == self._function and self._does_nothing(callee.obj):
                # As good as one of torch's.
                role = callee.role = Role.OPAQUE
        return role

    def _does_nothing(self, fn: types.FunctionType) -> bool:
        """Whether a function that is given nothing to call launches nothing and tells nothing."""
        if self.reach.leads_on(fn) or calls_a_parameter(fn.__code__, fn.__globals__):
            return False
        return not self.frames.tells_something(fn)

    def _work_out(  # noqa: C901  # a case for each kind
        self, frame: Frame, node: ast.Call, callees: Values
    ) -> CallOutcome:
        outcome = CallOutcome()
        chosen, cost = frame.scope.steps.get(id(node)) or step_of(frame, node)
        several = len(callees) > 1
        # What a kernel, an operator, an exception or a logger is given does not matter.
        call = None
        for callee in callees:
            kind = type(callee)
            if kind is Known and callee.obj is None:  # type: ignore[attr-defined]
                continue
            if kind is Method and _adds_texts(frame, node, callee):  # type: ignore[arg-type]
                outcome.values.extend(NONE)
                continue
            if (kind is LaunchValue or kind is OperatorValue) and not chosen:
                self.call(Call(frame, NO_ARGUMENTS, outcome), callee)
                continue
            # A callee without others is known not to.
            if several and _reports(callee):
                outcome.values.append(UNKNOWN)
                continue
            if call is None:
                call = Call(frame, self._arguments(frame, node), outcome, cost)
            if kind is Unknown:
                self._call_unknown(call, node, callee)  # type: ignore[arg-type]
            elif chosen:
                self._choose(call, node, callee)
            elif kind is Known:
                self._known(call, callee)  # type: ignore[arg-type]
            elif several and kind is BoundMethod:
                self._method_of_many(call, callee, callees)  # type: ignore[arg-type]
            else:
                self.call(call, callee)
        return outcome

    def _call_unknown(self, call: Call, node: ast.Call, callee: Unknown) -> None:
        if callee is UNKNOWN and looks_like_run(node):
            callee = _LAUNCH_OF_UNKNOWN
        keeps = getattr(node.func, "attr", "") in _KEEPING
        self._unknown(call.given(NO_ARGUMENTS) if keeps else call, callee)

    def _choose(self, call: Call, node: ast.Call, callee: Value) -> None:
        """Call an alternative.

        It returns what the wrapped function does, and need not be evaluated. One frame for all
        calls is enough, unless it is given something to launch.
        """
        when = condition(self.machine, call.frame, node.func, callee)
        inner = CallOutcome()
        carrying = any_carries(call.arguments.every())
        given = call.arguments if carrying else UNKNOWN_ARGUMENTS
        self.call(Call(call.frame, given, inner), callee)
        call.outcome.alternatives.append((when, inner.effects))

    def _method_of_many(self, call: Call, method: BoundMethod, callees: Values) -> None:
        """Call a method that other candidates bind to other objects: once for all, if it can be."""
        fn = method.fn
        if not isinstance(fn, Known) or not self._serves_many(fn):
            self.call(call, method)
            return
        together = [c for c in callees if isinstance(c, BoundMethod) and c.fn is fn]
        if method is together[0]:
            given = call.arguments.after(tuple([c.self for c in together]))
            self._known(call.given(given), fn)

    def _serves_many(self, fn: Known) -> bool:
        """Whether a method can be read once for all objects that a call may call it on."""
        known = fn.serves_many
        if known is None:
            obj, scope = fn.obj, None
            if type(obj) is types.FunctionType and not is_registered_op(obj) and not is_leaf(obj):
                scope = self.frames.scope(obj)
            known = fn.serves_many = scope is not None and serves_many(scope)
        return known

    def _is_idle(self, frame: Frame, node: ast.Call) -> bool:
        """Whether an opaque callee is given nothing that it could call: true of most of torch."""
        names = frame.names
        for given in (*node.args, *[keyword.value for keyword in node.keywords]):
            shape = type(given)
            if shape is ast.Constant:
                continue
            if shape is ast.Starred:
                given = given.value  # type: ignore[attr-defined]  # noqa: PLW2901
            # Most are names seen before.
            values = names.get(given.id) if shape is ast.Name else None  # type: ignore[attr-defined]
            if values is None:
                values = self.machine.evaluate(frame, given)
            if values is not ANY and any_carries(values):
                return False
        return True

    def call(self, call: Call, callee: Value) -> None:
        """Add what calling a value does to the call's outcome."""
        outcome = call.outcome
        if isinstance(callee, Known):
            self._known(call, callee)
        elif isinstance(callee, BoundMethod):
            self.call(call.after(callee.self), callee.fn)
        elif isinstance(callee, Partial):
            self.call(call.given(callee.arguments.extend(call.arguments)), callee.fn)
        elif isinstance(callee, LaunchValue):
            outcome.effects.append(Launched(callee.kernel))
        elif isinstance(callee, OperatorValue):
            outcome.effects.append(NestedCall(callee.name, None))
        elif isinstance(callee, Method):
            outcome.values.extend(method_result(callee, call.arguments.positional))
        elif isinstance(callee, Local):
            self._local(call, callee)
        elif isinstance(callee, Instance):
            self._instance(call, callee)
        elif isinstance(callee, Unknown):
            self._unknown(call, callee)

    def _arguments(self, frame: Frame, node: ast.Call) -> Arguments:
        if not node.args and not node.keywords:
            return NO_ARGUMENTS
        keywords: dict[str, Values] = {}
        double = NOTHING
        listed, rest = listed_values(self.machine, frame, node.args) if node.args else ((), NOTHING)
        names = frame.names
        for keyword in node.keywords:
            value = keyword.value
            # Most are names seen before.
            known = names.get(value.id) if type(value) is ast.Name else None
            found = self.machine.evaluate(frame, value) if known is None else known
            if keyword.arg is not None:
                keywords[keyword.arg] = found
                continue
            for table in map(opened, found):
                if isinstance(table, TableValue):
                    keywords.update({k: v for k, v in table.items.items() if isinstance(k, str)})
                    double = union(double, table.rest)
                else:
                    double = union(double, ANY)
        return Arguments(listed, keywords, rest, double)

    def _unknown(self, call: Call, callee: Unknown) -> None:
        if callee.why:
            call.outcome.effects.append(Lost(callee.why))
        if call.arguments is not NO_ARGUMENTS:
            hand_over(self.machine, call)
        call.outcome.values.extend(passed_through(call.arguments))

    def _local(self, call: Call, callee: Local) -> None:
        if not isinstance(callee.scope.node, ast.ClassDef):
            call.outcome.enter(self.frames.of_local(call.frame, callee, call.arguments), 0)
            return
        made = Instance(callee, call.arguments)
        call.outcome.values.append(made)
        inner = Call(call.frame, call.arguments, CallOutcome())
        for method in self.attributes.member(callee, "__init__", made):
            self.call(inner, method)
        call.outcome.effects.extend(inner.outcome.effects)

    def _instance(self, call: Call, callee: Instance) -> None:
        name = "__call__"
        if isinstance(callee.cls, Known):
            stored = class_attribute(callee.cls.obj, "__call__")
            if stored is MISSING:
                return
            if is_instance(stored, types.FunctionType) and is_leaf(stored):
                name = "forward"
        for method in self.attributes.find(call.frame, callee, name, call.frame.scope.node):
            self.call(call, method)

    def _known(self, call: Call, callee: Known) -> None:
        if callee.obj is None:
            return
        how = callee.how
        if how is None:
            how = callee.how = self._how(callee.obj)
        how(call, callee.obj)

    def _object(self, call: Call, obj: Any) -> None:
        self._how(obj)(call, obj)

    def _how(self, obj: Any) -> Callable[[Call, Any], None]:
        """What calls an object of its kind."""
        kind = type(obj)
        if kind is types.BuiltinFunctionType:
            return self._c_function
        if kind is types.MethodType:
            return self._method
        if kind is types.FunctionType:
            if obj.__dict__ and operator_name(obj) is not None:
                return self._operator
            return self._leaf if is_leaf(obj) else self._function
        if kind is not type and operator_name(obj) is not None:
            return self._operator
        if issubclass(kind, type):
            return self._leaf_class if is_leaf(obj) else self._class
        if issubclass(kind, C_FUNCTIONS):
            return self._c_function
        if issubclass(kind, functools.partial):
            return self._partial
        if issubclass(kind, (staticmethod, classmethod)):
            return self._below_decorator
        return self._callable_object

    @staticmethod
    def _operator(call: Call, obj: Any) -> None:
        marked = _compat.kernels.instance_dict(obj).get(OP_MARK)
        name = operator_name(obj) or ""
        call.outcome.effects.append(NestedCall(name, obj if marked is None else marked))

    def _partial(self, call: Call, obj: functools.partial[Any]) -> None:
        given = known_arguments(obj.args, obj.keywords).extend(call.arguments)
        self._object(call.given(given), obj.func)

    def _below_decorator(self, call: Call, obj: staticmethod[..., Any]) -> None:
        self._object(call, obj.__func__)

    def _method(self, call: Call, obj: types.MethodType) -> None:
        kernel = _compat.kernels.launched_kernel(obj.__self__)
        if kernel is not None and obj.__func__.__name__ in {"run", "warmup"}:
            if obj.__func__.__name__ == "run":
                call.outcome.effects.append(Launched(kernel))
            return
        self._object(call.after(Known(obj.__self__)), obj.__func__)

    def _function(self, call: Call, fn: types.FunctionType) -> None:
        leads = self.reach.leads.get(id(fn)) or call.frame is self.frames.root
        if not leads and self._leads_nowhere(fn, call.arguments):
            if self.frames.tells_something(fn):
                call.outcome.idle.append((call, fn))
            else:
                call.outcome.values.append(UNKNOWN)
            return
        inner = self.frames.of_function(call.frame, fn, call.arguments, call.cost)
        if inner is not None:
            call.outcome.enter(inner, call.cost)
            return
        below = wrapped(fn)
        if below is not None:
            self._object(call.at_cost(0), below)
        elif not self.frames.exhausted:
            call.outcome.effects.append(Lost(f"{describe(fn)} has no source to read"))
            hand_over(self.machine, call)

    def _leaf(self, call: Call, fn: types.FunctionType) -> None:
        first = call.arguments.first
        if not (first and fn.__name__ == "apply" and is_autograd_apply(fn)):
            call_leaf(self.machine, call, fn)
            return
        rest = call.given(call.arguments.rest())
        for value in first:
            if isinstance(value, Known) and is_instance(value.obj, type):
                apply_autograd(self.machine, self.frames, rest, value.obj)

    def _leads_nowhere(self, fn: types.FunctionType, arguments: Arguments) -> bool:
        """Whether neither what a function mentions nor what it is given can launch anything."""
        if self.reach.leads_on(fn):
            return False
        unknown = False
        groups = (*arguments.positional, *arguments.keywords.values())
        for group in (*groups, arguments.star, arguments.double):
            if group is ANY:
                continue
            for value in group:
                if type(value) is Unknown:
                    unknown = unknown or bool(value.why)
                elif value.carrying is not False and self._may_launch(value):
                    return False
        return not (unknown and calls_a_parameter(fn.__code__, fn.__globals__))

    def _may_launch(self, value: Value) -> bool:
        """Whether a function that is given a value may launch something through it."""
        if not carries(value):
            return False
        if isinstance(value, Known):
            return self.reach.leads_on(value.obj)
        if isinstance(value, Instance) and isinstance(value.cls, Known):
            inside = any(map(self._may_launch, value.arguments.every()))
            return inside or self.reach.leads_on(value.cls.obj)
        return True

    def _leaf_class(self, call: Call, cls: type[Any]) -> None:
        make_leaf(self.machine, call, cls)

    def _class(self, call: Call, cls: type[Any]) -> None:
        arguments = call.arguments
        carrying = any_carries(arguments.every())
        at_root = call.frame is self.frames.root
        if not carrying and not at_root and not self.reach.leads_on(cls):
            call.outcome.values.append(UNKNOWN)
            return
        arguments = UNKNOWN_ARGUMENTS if arguments.size > _MOST_INSIDE else arguments
        made = Instance(Known(cls), arguments)
        call.outcome.values.append(made)
        for name in ("__new__", "__init__", "__post_init__"):
            method = class_attribute(cls, name)
            method = method.__func__ if is_instance(method, staticmethod) else method
            if not is_instance(method, types.FunctionType) or is_leaf(method):
                continue
            first: Value = Known(cls) if name == "__new__" else made
            given = arguments if name != "__post_init__" else NO_ARGUMENTS
            inner = self.frames.of_function(call.frame, method, given.after((first,)))
            # A dataclass's `__init__` is generated, and has no source.
            if inner is not None:
                call.outcome.effects.append(Entered(inner))

    def _callable_object(self, call: Call, obj: Any) -> None:
        if _compat.kernels.is_traced_wrapper(obj):
            call.outcome.effects.append(Launched(obj.kernel))
            return
        if _compat.kernels.is_kernel(obj):
            return
        stored = class_attribute(type(obj), "__call__")
        if is_instance(stored, types.FunctionType) and not is_leaf(stored):
            self._object(call.after(Known(obj)), stored)
            return
        if is_module_instance(obj):
            self._module(call.at_cost(1), obj)
            return
        below = wrapped(obj)
        if below is None and is_instance(stored, (staticmethod, classmethod)):
            below = stored.__func__
        if below is not None:
            self._object(call.at_cost(0), below)
        elif stored is not MISSING:
            if not is_leaf(obj):
                why = f"{type(obj).__qualname__} is called in code without source"
                call.outcome.effects.append(Lost(why))
            hand_over(self.machine, call)

    def _module(self, call: Call, module: Any) -> None:
        """A module runs its `forward`; one of torch's own, the modules it holds."""
        forward = instance_attribute(module, "forward")
        if forward is not MISSING:
            self._object(call, forward)
            return
        forward = class_attribute(type(module), "forward")
        if is_instance(forward, types.FunctionType) and not is_leaf(forward):
            self._object(call.after(Known(module)), forward)
            return
        held = _compat.kernels.instance_dict(module).get("_modules")
        for inner in held.values() if is_instance(held, dict) else ():
            if is_module_instance(inner):
                self._module(call.given(UNKNOWN_ARGUMENTS), inner)

    def _c_function(self, call: Call, obj: Any) -> None:
        applied = applied_class(obj)
        if applied is not None:
            apply_autograd(self.machine, self.frames, call, applied)
            return
        if is_leaf(obj):
            call_leaf_builtin(self.machine, call, obj)
            return
        call.outcome.effects.append(Lost(f"{describe(obj)} is a C function"))
        hand_over(self.machine, call)


def _adds_texts(frame: Frame, node: ast.Call, method: Method) -> bool:
    """`logged.add(key)`: whether nothing needs to be known of what a container gets.

    A value that is not a text is looked at, as reading an attribute may run a property.
    """
    if method.name not in _ADDING or node.keywords:
        return False
    return all(
        type(given) is ast.Constant or (type(given) is ast.Name and is_text(frame.scope, given.id))
        for given in node.args
    )


def _reports(callee: Value) -> bool:
    return isinstance(callee, (Known, BoundMethod)) and role_of(callee) is Role.REPORTS
