"""Calls into torch, Triton, numpy and the standard library: not read, but not always inert.

Some return what they are given, some make containers, and some call the functions handed to them.
"""

from __future__ import annotations

import abc
import collections
import functools
import importlib
import itertools
import logging
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from ... import _compat
from .containers import elements, item, opened, table_values
from .frames import Frame, Launched, Lost, Outcome
from .objects import class_attribute, is_instance, is_leaf, wrapped
from .operations import Operations
from .reach import callables_held, is_callback, is_plain_leaf
from .values import (
    ANY,
    NOTHING,
    UNKNOWN,
    UNKNOWN_ARGUMENTS,
    Arguments,
    Bound,
    Instance,
    Known,
    Launch,
    Local,
    Maker,
    Partial,
    Sequence,
    Super,
    Table,
    Unknown,
    Value,
    Values,
    constants,
    union,
)

# Parts of the standard library that call what they are given; the rest only looks at it.
_CALLING = frozenset(
    [
        "asyncio",
        "concurrent",
        "contextlib",
        "contextvars",
        "itertools",
        "multiprocessing",
        "threading",
        "timeit",
    ]
)
_CALLING_BUILTINS = frozenset({filter, map, max, min, sorted, functools.reduce})
# Parts of torch that keep or mark a function and do not call it.
_KEEPING = ("torch.library", "torch._library", "torch.compiler", "torch.jit", "torch.fx")
_KERNEL_MAKERS = frozenset({"jit", "autotune", "heuristics"})
# What these return is one of their arguments, or stands for it.
_SAME_CONTAINER = frozenset(
    {list, tuple, set, frozenset, collections.deque, reversed, iter, sorted}
)


class Leaves(Operations, abc.ABC):
    """Calls of functions that are not read."""

    @abc.abstractmethod
    def apply_autograd(
        self, frame: Frame, cls: type[Any], arguments: Arguments, outcome: Outcome
    ) -> None: ...

    @abc.abstractmethod
    def call_known(
        self, frame: Frame, obj: Any, arguments: Arguments, outcome: Outcome, cost: int
    ) -> None: ...

    def call_leaf(
        self,
        frame: Frame,
        fn: types.FunctionType,
        arguments: Arguments,
        outcome: Outcome,
        cost: int,
    ) -> None:
        kernel = _compat.kernels.grid_bound_kernel(fn)
        first = arguments.positional[0] if arguments.positional else NOTHING
        if kernel is not None:
            outcome.effects.append(Launched(kernel))
        elif _compat.kernels.is_wrap_triton(fn):
            outcome.values.extend(union(first, *arguments.keywords.values()))
        elif fn.__name__ == "apply" and _is_autograd_apply(fn) and first:
            for value in first:
                cls = value.obj if isinstance(value, Known) else None
                if is_instance(cls, type):
                    rest = Arguments(
                        arguments.positional[1:],
                        arguments.keywords,
                        arguments.star,
                        arguments.double,
                    )
                    self.apply_autograd(frame, cls, rest, outcome)
        elif fn.__name__ in {"run", "__getitem__"} and _is_tritons(fn) and first:
            _launch_by_class(fn, first, outcome)
        elif _makes_kernels(fn):
            outcome.values.extend(_made(first))
        elif fn is importlib.import_module:
            outcome.values.extend(_imported(first))
        elif fn.__name__ == "cast" and fn.__module__ == "typing":
            outcome.values.extend(union(*arguments.positional[1:]))
        else:
            self.see_through(frame, fn, arguments, outcome, cost)

    def see_through(
        self,
        frame: Frame,
        fn: types.FunctionType,
        arguments: Arguments,
        outcome: Outcome,
        cost: int,
    ) -> None:
        """A leaf's function around somebody else's: `torch.no_grad()(f)`, `singledispatch(f)`."""
        registry = fn.__dict__.get("registry")
        if isinstance(registry, types.MappingProxyType) and "dispatch" in fn.__dict__:
            inner = [f for f in registry.values() if callable(f)]
        else:
            below = wrapped(fn)
            inner = [below] if below is not None else callables_held(fn)
        inner = [f for f in inner if not (is_instance(f, types.FunctionType) and is_plain_leaf(f))]
        for one in inner:
            self.call_known(frame, one, arguments, outcome, cost)
        if not inner:
            self.leaf_result(frame, fn, arguments, outcome)

    def leaf_result(self, frame: Frame, fn: Any, arguments: Arguments, outcome: Outcome) -> None:
        if _calls_its_arguments(fn):
            self.hand(frame, arguments, outcome)
        outcome.values.extend(self.passed_through(arguments) or ANY)

    def passed_through(self, arguments: Arguments) -> Values:
        """What a decorator makes of the one function it gets: as good as the function."""
        if len(arguments.positional) != 1 or arguments.star or arguments.positional[0] is ANY:
            return ANY
        found = tuple([v for v in arguments.positional[0] if is_callback(v)])
        return union(found, ANY) if found else ANY

    def hand(self, frame: Frame, arguments: Arguments, outcome: Outcome) -> None:
        """Functions handed to code that is not read are taken to be called by it."""
        for group in arguments.every():
            for value in group if group is not ANY else NOTHING:
                if isinstance(value, Unknown):
                    continue
                container = opened(value) if isinstance(value, (Sequence, Table)) else None
                inner = table_values(container) if container is not None else (value,)
                for one in inner:
                    if is_callback(one):
                        ignored = Outcome()
                        self.call(frame, one, UNKNOWN_ARGUMENTS, ignored)
                        outcome.effects.extend(
                            e for e in ignored.effects if not isinstance(e, Lost)
                        )

    def call_leaf_builtin(
        self, frame: Frame, obj: Any, arguments: Arguments, outcome: Outcome
    ) -> None:
        special = _BUILTINS.get(obj) if _hashable(obj) else None
        if special is not None:
            outcome.values.extend(special(self, frame, arguments))
            return
        if obj is eval or obj is exec:
            why = f"{obj.__name__} runs a text, which is not read"
            outcome.values.append(Unknown(why))
            if _may_call(arguments.positional[0] if arguments.positional else ANY):
                outcome.effects.append(Lost(why))
            return
        owner = getattr(obj, "__self__", None)
        if getattr(obj, "__name__", "") == "__init__" or is_instance(owner, types.ModuleType):
            self.leaf_result(frame, obj, arguments, outcome)
        else:
            outcome.values.extend(ANY)

    def make_leaf(
        self, frame: Frame, cls: type[Any], arguments: Arguments, outcome: Outcome
    ) -> None:
        special = _CLASSES.get(cls)
        if special is not None:
            outcome.values.extend(special(self, frame, arguments))
        elif cls in _SAME_CONTAINER:
            outcome.values.extend(same_elements(self, frame, arguments))
        if cls in _CALLING_BUILTINS or (special is None and _calls_its_arguments(cls)):
            self.hand(frame, arguments, outcome)
        if not outcome.values:
            outcome.values.append(UNKNOWN)

    def read_attribute(self, frame: Frame, arguments: Arguments) -> Values:
        """`getattr(owner, name, default)`."""
        owners, names, *default = (*arguments.positional, NOTHING, NOTHING)[
            : max(2, len(arguments.positional))
        ]
        known = constants(names)
        if known is None:
            why = Unknown("getattr with a name that is computed")
            return tuple(why if _may_matter(owner) else UNKNOWN for owner in owners)
        found = [
            self.attribute(frame, owner, name, frame.scope.node)
            for owner in owners
            for name in known
            if isinstance(name, str)
        ]
        if default:
            # A name that is missing now gives the default.
            found = [
                tuple(v for v in f if not isinstance(v, Unknown) or not v.sticky) for f in found
            ]
        return union(*found, *default)

    def read_item(self, frame: Frame, arguments: Arguments) -> Values:
        """`operator.getitem(owner, key)`."""
        owners, keys, *_ = (*arguments.positional, ANY, ANY)
        found: list[Values] = []
        for owner in owners:
            container, kernel = opened(owner), _kernel_of(owner)
            if container is not None:
                found.append(item(container, keys))
            elif kernel is not None:
                found.append((Launch(kernel),))
            else:
                getters = self.attribute(frame, owner, "__getitem__", frame.scope.node)
                given = Arguments((keys,))
                found += [self.run(frame, g, given, frame.scope.node) for g in getters]
        return union(*found) or ANY

    def make_partial(self, frame: Frame, arguments: Arguments) -> Values:  # noqa: ARG002
        if not arguments.positional:
            return ANY
        rest = Arguments(
            arguments.positional[1:], arguments.keywords, arguments.star, arguments.double
        )
        return tuple(Partial(fn, rest) for fn in arguments.positional[0])

    def make_super(self, frame: Frame, arguments: Arguments) -> Values:
        """`super()`: the class is in the method's `__class__` cell, `self` its first argument."""
        around = frame
        while around.parent is not None:
            around = around.parent
        if len(arguments.positional) == 2:
            cells, owners = arguments.positional
        else:
            cells = self.outside(around, "__class__")
            first = around.scope.parameters[:1]
            owners = around.parameters.get(first[0], ANY) if first else ANY
        return tuple(
            Super(cls.obj, owner)
            for cls in cells
            for owner in owners
            if isinstance(cls, Known) and is_instance(cls.obj, type)
        )

    def make_type(self, frame: Frame, arguments: Arguments) -> Values:  # noqa: ARG002
        if len(arguments.positional) != 1:
            return ANY
        found: list[Value] = []
        for value in arguments.positional[0]:
            if isinstance(value, Known):
                found.append(Known(type(value.obj)))
            elif isinstance(value, Instance):
                found.append(value.cls)
        return tuple(found) or ANY

    def make_zip(self, frame: Frame, arguments: Arguments) -> Values:  # noqa: ARG002
        columns = tuple(elements(column) for column in arguments.positional)
        return (Sequence(rest=(Sequence(columns, arguments.star),)),)

    def make_enumerate(self, frame: Frame, arguments: Arguments) -> Values:  # noqa: ARG002
        inner = elements(arguments.positional[0]) if arguments.positional else ANY
        return (Sequence(rest=(Sequence((ANY, inner)),)),)

    def make_chain(self, frame: Frame, arguments: Arguments) -> Values:  # noqa: ARG002
        return (Sequence(rest=union(*(elements(a) for a in arguments.positional))),)

    def make_map(self, frame: Frame, arguments: Arguments) -> Values:
        if not arguments.positional:
            return ANY
        fns, *columns = arguments.positional
        inner = Arguments(tuple(elements(column) for column in columns))
        outcome = Outcome()
        for fn in fns:
            self.call(frame, fn, inner, outcome)
        return (Sequence(rest=self.results(outcome)),)

    def make_filter(self, frame: Frame, arguments: Arguments) -> Values:  # noqa: ARG002
        return (Sequence(rest=union(*(elements(a) for a in arguments.positional[1:]))),)

    def make_dict(self, frame: Frame, arguments: Arguments) -> Values:  # noqa: ARG002
        items: dict[Any, Values] = {}
        rest: Values = arguments.double
        for group in arguments.positional:
            for value in group:
                container = opened(value)
                if isinstance(container, Table):
                    items.update(container.items)
                    rest = union(rest, container.rest)
                elif isinstance(container, Sequence):
                    pairs = map(opened, elements((container,)))
                    found = [
                        p.items[1] for p in pairs if isinstance(p, Sequence) and len(p.items) > 1
                    ]
                    rest = union(rest, *found)
        items.update(arguments.keywords)
        return (Table(items, rest),)

    def make_default_dict(self, frame: Frame, arguments: Arguments) -> Values:
        rest = Arguments(arguments.positional[1:], arguments.keywords)
        return self.make_dict(frame, rest)

    def read_globals(self, frame: Frame, arguments: Arguments) -> Values:  # noqa: ARG002
        return (Known(frame.fn.__globals__),)

    def read_vars(self, frame: Frame, arguments: Arguments) -> Values:  # noqa: ARG002
        owners = arguments.positional[0] if arguments.positional else NOTHING
        known = [value.obj for value in owners if isinstance(value, Known)]
        return tuple(Known(_compat.kernels.instance_dict(obj)) for obj in known) or ANY

    def take_next(self, frame: Frame, arguments: Arguments) -> Values:  # noqa: ARG002
        if not arguments.positional:
            return ANY
        return union(elements(arguments.positional[0]), *arguments.positional[1:])

    def take_first(self, frame: Frame, arguments: Arguments) -> Values:  # noqa: ARG002
        return arguments.positional[0] if arguments.positional else ANY

    def take_item(self, frame: Frame, arguments: Arguments) -> Values:  # noqa: ARG002
        candidates = [
            elements(a) if len(arguments.positional) == 1 else a for a in arguments.positional
        ]
        return union(*candidates) or ANY


def same_elements(reader: Leaves, frame: Frame, arguments: Arguments) -> Values:  # noqa: ARG001
    if not arguments.positional:
        return (Sequence(),)
    found: list[Value] = []
    for value in arguments.positional[0]:
        container = opened(value)
        if isinstance(container, Sequence):
            found.append(container)
        elif container is not None:
            found.append(Sequence(rest=elements((container,))))
    return tuple(found) or ANY


Special = Callable[[Leaves, Frame, Arguments], Values]

_BUILTINS: dict[Any, Special] = {
    getattr: Leaves.read_attribute,
    globals: Leaves.read_globals,
    vars: Leaves.read_vars,
    operator.getitem: Leaves.read_item,
    next: Leaves.take_next,
    iter: same_elements,
    sorted: same_elements,
    min: Leaves.take_item,
    max: Leaves.take_item,
}
_CLASSES: dict[type[Any], Special] = {
    functools.partial: Leaves.make_partial,
    staticmethod: Leaves.take_first,
    classmethod: Leaves.take_first,
    super: Leaves.make_super,
    type: Leaves.make_type,
    zip: Leaves.make_zip,
    enumerate: Leaves.make_enumerate,
    map: Leaves.make_map,
    filter: Leaves.make_filter,
    dict: Leaves.make_dict,
    collections.OrderedDict: Leaves.make_dict,
    collections.defaultdict: Leaves.make_default_dict,
    itertools.chain: Leaves.make_chain,
    itertools.product: Leaves.make_zip,
    itertools.cycle: same_elements,
}


def _is_autograd_apply(fn: types.FunctionType) -> bool:
    stored = class_attribute(torch.autograd.Function, "apply")
    return is_instance(stored, classmethod) and stored.__func__ is fn


def _may_call(texts: Values) -> bool:
    known = constants(texts)
    return known is None or any("(" in str(text) for text in known)


def _imported(names: Values) -> Values:
    """`importlib.import_module(name)`, of what is loaded."""
    known = constants(names)
    if known is None:
        return (Unknown("a module whose name is computed is imported", sticky=True),)
    loaded = [sys.modules.get(name) for name in known if isinstance(name, str)]
    missing = (Unknown(f"{known} is not imported yet", sticky=True),) if None in loaded else NOTHING
    return union(tuple(Known(m) for m in loaded if m is not None), missing)


def _makes_kernels(fn: types.FunctionType) -> bool:
    return fn.__name__ in _KERNEL_MAKERS and _is_tritons(fn)


def _is_tritons(fn: types.FunctionType) -> bool:
    # By the module that it says it is of: what stands in front of Triton's own says the same.
    return str(fn.__module__).startswith("triton.")


def _launch_by_class(fn: types.FunctionType, first: Values, outcome: Outcome) -> None:
    """`type(k).run(k, ...)` and `JITFunction.__getitem__(k, grid)`."""
    for value in first:
        kernel = _kernel_of(value)
        if kernel is None:
            outcome.values.extend(ANY)
        elif fn.__name__ == "run":
            outcome.effects.append(Launched(kernel))
        else:
            outcome.values.append(Launch(kernel))


def _kernel_of(value: Value) -> Any:
    return _compat.kernels.launched_kernel(value.obj) if isinstance(value, Known) else None


def _made(first: Values) -> Values:
    functions = any(
        isinstance(v, Local) or (isinstance(v, Known) and callable(v.obj)) for v in first
    )
    return (Unknown("the kernel is made when the function runs"),) if functions else (Maker(),)


def _calls_its_arguments(fn: Any) -> bool:
    if _hashable(fn) and fn in _CALLING_BUILTINS:
        return True
    module = fn.__globals__.get("__name__") if is_instance(fn, types.FunctionType) else None
    module = str(module or getattr(fn, "__module__", None) or "builtins")
    top = module.partition(".")[0]
    if top not in {"torch", "triton", "numpy"}:
        return top in _CALLING
    return not module.startswith(_KEEPING) and fn is not torch.compile


def _hashable(obj: Any) -> bool:
    return is_instance(obj, (types.BuiltinFunctionType, type, types.FunctionType))


def _may_matter(owner: Value) -> bool:
    if isinstance(owner, Known):
        return not is_leaf(owner.obj)
    return isinstance(owner, Instance)


def only_tells(callee: Value) -> bool:
    """Whether a callee is `ValueError`, `logger.info` or the like, which makes a text known."""
    callee = callee.fn if type(callee) is Bound else callee
    if type(callee) is not Known:
        return False
    obj = callee.obj
    if type(obj) is types.FunctionType:
        return obj.__globals__ is vars(logging)
    return type(obj) is type and issubclass(obj, BaseException) and is_leaf(obj)
