"""Calls into torch, Triton, numpy and the standard library: not read, but not always inert.

Some return what they are given, some make containers, and some call the functions handed to them.
"""

from __future__ import annotations

import enum
import functools
import importlib
import logging
import sys
import types
from typing import Any

import torch

from ... import _compat
from .autograd_calls import is_autograd_apply
from .builtin_calls import builtin_result, has_result
from .containers import table_values
from .frames import Call, CallOutcome, Launched, Local, Lost
from .machine import Machine
from .objects import (
    class_attribute,
    is_instance,
    is_leaf,
    is_module_instance,
    is_registered_op,
    wrapped,
)
from .reach import callables_held, carries, is_callback, is_plain_leaf
from .values import (
    ANY,
    NOTHING,
    UNKNOWN,
    UNKNOWN_ARGUMENTS,
    Arguments,
    BoundMethod,
    Known,
    LaunchValue,
    Sequence,
    TableValue,
    Unknown,
    Value,
    Values,
    constants,
    some_constants,
    union,
)

# Parts of the standard library that call what they are given; the rest only looks at it.
_CALLING = frozenset({
    "asyncio", "concurrent", "contextlib", "contextvars", "itertools", "multiprocessing",
    "threading", "timeit",
})  # fmt: skip
_CALLING_BUILTINS = frozenset({filter, map, max, min, sorted, functools.reduce})
# Parts of torch that keep or mark a function and do not call it.
_KEEPING = ("torch.library", "torch._library", "torch.compiler", "torch.jit", "torch.fx")
_KERNEL_MAKERS = frozenset({"jit", "autotune", "heuristics"})
_MADE = Unknown("the kernel is made when the function runs")


def call_leaf(machine: Machine, call: Call, fn: types.FunctionType) -> None:
    """Call a Python function that is not read."""
    kernel = _compat.kernels.grid_bound_kernel(fn)
    arguments, values = call.arguments, call.outcome.values
    first = arguments.first
    if kernel is not None:
        call.outcome.effects.append(Launched(kernel))
    elif _compat.kernels.is_wrap_triton(fn):
        values.extend(union(first, *arguments.keywords.values()))
    elif fn.__name__ in {"run", "__getitem__"} and _is_tritons(fn) and first:
        _launch_by_class(fn, first, call.outcome)
    elif fn.__name__ in _KERNEL_MAKERS and _is_tritons(fn):
        values.append(_made(fn, first))
    elif fn is importlib.import_module:
        values.extend(_imported(first))
    elif fn.__name__ == "cast" and fn.__module__ == "typing":
        values.extend(union(*arguments.positional[1:]))
    else:
        _see_through(machine, call, fn)


def call_leaf_builtin(machine: Machine, call: Call, obj: Any) -> None:
    """Call a C function of a leaf."""
    arguments, outcome = call.arguments, call.outcome
    found = None
    if _is_hashable(obj):
        found = builtin_result(machine, call.frame, obj, arguments)
    if found is not None:
        outcome.values.extend(found)
        return
    if obj is eval or obj is exec:
        why = f"{obj.__name__} runs a text, which is not read"
        outcome.values.append(Unknown(why))
        if _may_call(arguments.first):
            outcome.effects.append(Lost(why))
        return
    owner = getattr(obj, "__self__", None)
    if getattr(obj, "__name__", "") == "__init__" or is_instance(owner, types.ModuleType):
        _call_opaque(machine, call, obj)
    else:
        outcome.values.extend(ANY)


def make_leaf(machine: Machine, call: Call, cls: type[Any]) -> None:
    """Make an object of a leaf's class."""
    found = builtin_result(machine, call.frame, cls, call.arguments)
    if cls in _CALLING_BUILTINS or (found is None and _calls_its_arguments(cls)):
        hand_over(machine, call)
    values = call.outcome.values
    values.extend(found or NOTHING)
    if not values:
        values.append(UNKNOWN)


def hand_over(machine: Machine, call: Call) -> None:
    """Assume that code that is not read calls the functions it is given."""
    for value in call.arguments.every():
        if type(value) is Unknown:
            continue
        members = table_values(value) if isinstance(value, (Sequence, TableValue)) else (value,)
        for one in members:
            if is_callback(one):
                inner = CallOutcome()
                machine.call(Call(call.frame, UNKNOWN_ARGUMENTS, inner), one)
                call.outcome.effects += [e for e in inner.effects if not isinstance(e, Lost)]


def passed_through(arguments: Arguments) -> Values:
    """What a decorator makes of the one function it is given: as good as the function."""
    if len(arguments.positional) != 1 or arguments.star or arguments.positional[0] is ANY:
        return ANY
    found = tuple([v for v in arguments.positional[0] if is_callback(v)])
    return union(found, ANY) if found else ANY


class Role(enum.Enum):
    """What can be told of a callee before its arguments are known."""

    # It only takes a message: `ValueError`, `logger.info`.
    REPORTS = enum.auto()
    # It does nothing with what cannot be called, and nothing is known of its result. True of most
    # of torch.
    OPAQUE = enum.auto()
    OTHER = enum.auto()


def role_of(callee: Known | BoundMethod) -> Role:
    """The role of a callee."""
    known: Role | None = callee.role
    if known is None:
        known = callee.role = _role_of(callee)
    return known


def _role_of(callee: Known | BoundMethod) -> Role:
    fn = callee if isinstance(callee, Known) else callee.fn
    if not isinstance(fn, Known):
        return Role.OTHER
    # One that carries something is not a plain leaf.
    if type(fn.obj) is types.FunctionType and (fn.carrying or not is_leaf(fn.obj)):
        return Role.OTHER
    if _reports(fn.obj):
        return Role.REPORTS
    if isinstance(callee, BoundMethod):
        return Role.OPAQUE if _is_opaque_method(fn.obj, callee.self) else Role.OTHER
    return Role.OPAQUE if _is_opaque(fn.obj) else Role.OTHER


def _is_opaque_method(fn: Any, owner: Value) -> bool:
    """The same of a method, such as `str.upper`, which is given its owner as well."""
    if type(fn) is types.FunctionType:
        return _is_opaque(fn) and not carries(owner)
    return type(fn) is types.MethodDescriptorType and is_leaf(fn) and fn.__name__ != "__init__"


def _is_opaque(obj: Any) -> bool:
    kind = type(obj)
    if kind is types.FunctionType:
        return is_plain_leaf(obj) and not _is_special(obj) and not is_registered_op(obj)
    if issubclass(kind, types.BuiltinFunctionType):
        return is_leaf(obj) and not has_result(obj) and obj is not eval and obj is not exec
    if kind is not type and is_registered_op(obj):
        return False
    if issubclass(kind, type):
        return is_leaf(obj) and not has_result(obj)
    # Triton's `cdiv` is an object around a function.
    stored = class_attribute(kind, "__call__")
    if type(stored) is not types.FunctionType or not is_leaf(stored):
        return False
    if _compat.kernels.launched_kernel(obj) is not None or is_module_instance(obj):
        return False
    below = wrapped(obj)
    return type(below) is types.FunctionType and _is_opaque(below)


def _is_special(fn: types.FunctionType) -> bool:
    """Whether `call_leaf` knows what a leaf's function does."""
    if _compat.kernels.is_wrap_triton(fn) or is_autograd_apply(fn) or "registry" in fn.__dict__:
        return True
    if fn.__name__ in _KERNEL_MAKERS or fn.__name__ in {"run", "__getitem__"}:
        return _is_tritons(fn)
    return fn is importlib.import_module or (fn.__name__ == "cast" and fn.__module__ == "typing")


def _reports(obj: Any) -> bool:
    if type(obj) is types.FunctionType:
        return obj.__globals__ is vars(logging)
    return type(obj) is type and issubclass(obj, BaseException) and is_leaf(obj)


def _see_through(machine: Machine, call: Call, fn: types.FunctionType) -> None:
    """A leaf's function around somebody else's: `torch.no_grad()(f)`, `singledispatch(f)`."""
    registry = fn.__dict__.get("registry")
    if isinstance(registry, types.MappingProxyType) and "dispatch" in fn.__dict__:
        inner = [f for f in registry.values() if callable(f)]
    else:
        below = wrapped(fn)
        inner = [below] if below is not None else callables_held(fn)
    inner = [f for f in inner if not (is_instance(f, types.FunctionType) and is_plain_leaf(f))]
    for one in inner:
        machine.call(call, machine.known(one))
    if not inner:
        _call_opaque(machine, call, fn)


def _call_opaque(machine: Machine, call: Call, fn: Any) -> None:
    if _calls_its_arguments(fn):
        hand_over(machine, call)
    call.outcome.values.extend(passed_through(call.arguments))


def _calls_its_arguments(fn: Any) -> bool:
    if _is_hashable(fn) and fn in _CALLING_BUILTINS:
        return True
    module = fn.__globals__.get("__name__") if is_instance(fn, types.FunctionType) else None
    module = str(module or getattr(fn, "__module__", None) or "builtins")
    top = module.partition(".")[0]
    if top not in {"torch", "triton", "numpy"}:
        return top in _CALLING
    return not module.startswith(_KEEPING) and fn is not torch.compile


def _is_hashable(obj: Any) -> bool:
    """Whether hashing an object runs no code of its owner's."""
    return issubclass(type(obj), (types.BuiltinFunctionType, type, types.FunctionType))


def _may_call(texts: Values) -> bool:
    known = constants(texts)
    return known is None or any("(" in str(text) for text in known)


def _imported(names: Values) -> Values:
    """`importlib.import_module(name)`, of what is loaded."""
    known = some_constants(names)
    computed = NOTHING
    if not known or len(known) < len(names):
        computed = (Unknown("a module whose name is computed is imported", sticky=True),)
    loaded = [sys.modules.get(name) for name in known if isinstance(name, str)]
    missing = (Unknown(f"{known} is not imported yet", sticky=True),) if None in loaded else NOTHING
    return union(tuple(Known(m) for m in loaded if m is not None), missing, computed)


def _is_tritons(fn: types.FunctionType) -> bool:
    # By its `__module__`: a wrapper around one of Triton's own functions has the same.
    return str(fn.__module__).startswith("triton.")


def _launch_by_class(fn: types.FunctionType, first: Values, outcome: CallOutcome) -> None:
    """`type(k).run(k, ...)` and `JITFunction.__getitem__(k, grid)`."""
    for value in first:
        kernel = _compat.kernels.launched_kernel(value.obj) if isinstance(value, Known) else None
        if kernel is None:
            outcome.values.extend(ANY)
        elif fn.__name__ == "run":
            outcome.effects.append(Launched(kernel))
        else:
            outcome.values.append(LaunchValue(kernel))


def _made(maker: types.FunctionType, first: Values) -> Value:
    """A kernel, or a decorator that makes one: as good as the maker itself."""
    functions = any(
        v is _MADE or isinstance(v, Local) or (isinstance(v, Known) and callable(v.obj))
        for v in first
    )
    return _MADE if functions else Known(maker)
