"""Finds the frame of a call: one for each function and set of arguments."""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from .annotations import allowed_constants
from .containers import ITEM, table_values
from .frames import Frame, Instance, Local
from .identity import cached_by_identity
from .machine import Machine
from .objects import class_attribute, is_instance, owner_of
from .reach import carries
from .scopes import Scope, scope_of
from .source import read_source
from .values import (
    ANY,
    GIVEN,
    NONE,
    NOTHING,
    UNKNOWN,
    UNKNOWN_ARGUMENTS,
    Arguments,
    BoundMethod,
    Known,
    LaunchValue,
    Partial,
    Sequence,
    TableValue,
    Unknown,
    Value,
    Values,
    is_constant,
    key_of,
    union,
)

# How many sets of arguments a function is read with before numbers and strings among them are
# forgotten, and how many frames one reading may take.
_CONTEXTS = 4
_FRAMES = 400
# Reading a short function is cheap, and it may do `getattr(self, name)` with the name it is given.
_SHORT_CONTEXTS = 64
_SHORT = 300
_NUMBERS = frozenset({int, float, bool})
_ANY_KEY = UNKNOWN.key


@dataclass(eq=False, slots=True)
class _Text:
    """A function as one reading has it.

    It is kept, so that no other takes its id. `read` counts the sets of arguments that it was read
    with; beyond `contexts` they are no longer told apart.
    """

    fn: types.FunctionType
    scope: Scope
    offset: int
    defaults: dict[str, Values]
    contexts: int
    read: int = 0


class FrameTable:
    """The frames of one reading; `exhausted` once it is full and a function was left out."""

    def __init__(self, machine: Machine, root: Frame) -> None:
        self.machine = machine
        self.root = root
        self.exhausted = False
        self._frames: dict[Hashable, Frame] = {}
        self._contexts: dict[int, int] = {}
        self._texts: dict[int, _Text | None] = {}

    def of_function(
        self, caller: Frame, fn: types.FunctionType, arguments: Arguments, cost: int = 1
    ) -> Frame | None:
        """A function's frame, or None where it has no source or the table is full."""
        text = self._texts.get(id(fn)) or self._text_of(fn)
        if text is None:
            return None
        depth = caller.depth + cost
        scope = text.scope
        bound = _bind(scope, fn, arguments, text.defaults)
        told = _forget_numbers(bound, scope)
        if caller is self.root:
            _give_self(fn, bound)
            told = _context_key(bound)
        if text.read > text.contexts:
            bound = _generalized(bound)
            told = _context_key(bound)
        key = (id(fn), told)
        known = self._frames.get(key)
        if known is None:
            if len(self._frames) >= _FRAMES:
                self.exhausted = True
                return None
            text.read += 1
            known = self._frames[key] = Frame(scope, fn, text.offset, depth, bound)
            # What is not changed is what was given.
            known.names = dict(bound)
            for name in scope.changed:
                del known.names[name]
        elif depth < known.depth:
            known.depth = depth
        return known

    def scope(self, fn: types.FunctionType) -> Scope | None:
        """The text of a function, or None where it has no source."""
        text = self._text_of(fn)
        return None if text is None else text.scope

    def tells_something(self, fn: types.FunctionType) -> bool:
        """Whether the result of a function that launches nothing is worth knowing.

        A short one may return a string that is a key of a table of kernels.
        """
        if len(fn.__code__.co_code) >= _SHORT:
            return False
        text = self._texts.get(id(fn)) or self._text_of(fn)
        return text is not None and (not text.scope.only_compares or text.scope.is_generator)

    def of_local(self, caller: Frame, local: Local, arguments: Arguments) -> Frame:
        """The frame of a nested function; it is part of the text around it, and adds no depth."""
        node = local.scope.node
        home = local.frame
        bound: dict[str, Values] = {}
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            defaults = self._written_defaults(local, node.args)
            bound = _bind(local.scope, home.fn, arguments, defaults)
        read = self._contexts.get(id(node), 0)
        if read > _CONTEXTS:
            bound = _generalized(bound)
        key: Hashable = (id(node), id(home), _context_key(bound))
        known = self._frames.get(key)
        if known is None:
            self._contexts[id(node)] = read + 1
            # Once the table is full, this frame stands for all calls still to come.
            key = key if len(self._frames) < _FRAMES else (id(node), id(home))
            known = self._frames.setdefault(
                key, Frame(local.scope, home.fn, home.offset, caller.depth, bound, home)
            )
        known.depth = min(known.depth, caller.depth)
        return known

    def _text_of(self, fn: types.FunctionType) -> _Text | None:
        here = id(fn)
        if here in self._texts:
            return self._texts[here]
        source = _read(fn.__code__, fn.__globals__)
        text = None
        if source is not None:
            contexts = _SHORT_CONTEXTS if len(fn.__code__.co_code) < _SHORT else _CONTEXTS
            text = _Text(fn, *source, _held_defaults(fn), contexts)
        self._texts[here] = text
        return text

    def _written_defaults(self, local: Local, node: ast.arguments) -> dict[str, Values]:
        written = reversed([*node.defaults, *node.kw_defaults])
        return {
            name: self.machine.evaluate(local.frame, default)
            for name, default in zip(reversed(local.scope.listed), written, strict=False)
            if default is not None
        }


@cached_by_identity
def _read(code: types.CodeType, module: dict[str, Any]) -> tuple[Scope, int] | None:
    """The scope of a function and the offset of its lines, or None where it has no source."""
    source = read_source(code, module)
    return None if source is None else (scope_of(source.node), source.offset)


def _held_defaults(fn: types.FunctionType) -> dict[str, Values]:
    """The defaults of parameters, as the function holds them now."""
    if not fn.__defaults__ and not fn.__kwdefaults__:
        return {}
    code = fn.__code__
    positional = code.co_varnames[: code.co_argcount]
    held = dict(zip(reversed(positional), reversed(fn.__defaults__ or ()), strict=False))
    held.update(fn.__kwdefaults__ or {})
    return {name: NONE if value is None else (Known(value),) for name, value in held.items()}


def _bind(
    scope: Scope, fn: types.FunctionType, given: Arguments, defaults: dict[str, Values]
) -> dict[str, Values]:
    """Parameter name -> candidates, as Python binds a call."""
    positional, keywords = scope.positional, given.keywords
    bound: dict[str, Values] = dict(zip(positional, given.positional, strict=False))
    exact = not given.star and not given.double
    either = given.double if exact else union(given.star, given.double)
    for name in scope.listed[len(bound) :]:
        if name in keywords:
            bound[name] = keywords[name]
        elif exact:
            bound[name] = defaults.get(name) or _not_given(name)
        else:
            loose = either if name in positional else given.double
            default = defaults.get(name, NOTHING)
            for value in loose:
                if value is GIVEN:
                    others = tuple(value for value in loose if value is not GIVEN)
                    loose = union(others, _given(scope, fn, name, default))
                    break
            if loose:
                bound[name] = union(default, loose) if default else loose
            else:
                bound[name] = default or _not_given(name)
    if scope.vararg is not None:
        bound[scope.vararg] = (Sequence(given.positional[len(positional) :], given.star),)
    if scope.kwarg is not None:
        items: dict[Hashable, Values] = {k: v for k, v in keywords.items() if k not in bound}
        bound[scope.kwarg] = (TableValue(items, given.double),)
    return bound


def _given(scope: Scope, fn: types.FunctionType, name: str, default: Values) -> Values:
    """What a caller who is not read may give for a parameter."""
    allowed = allowed_constants(scope, fn, name)
    if allowed is not None:
        return tuple(Known(constant) for constant in allowed)
    # A parameter whose default is a text or a number gets another one, which nobody calls.
    plain = default and all(is_constant(v) and v.obj is not None for v in default)
    return ANY if plain else _not_given(name)


@functools.lru_cache(maxsize=4096)
def _not_given(name: str) -> Values:
    return (Unknown(f"parameter '{name}' is given by the caller"),)


def _context_key(bound: dict[str, Values]) -> Hashable:
    """Tells calls of one function apart; its parameters are always bound in one order."""
    return tuple([v[0].key if len(v) == 1 else key_of(v) for v in bound.values()])


def _forget_numbers(bound: dict[str, Values], scope: Scope) -> Hashable:
    """Forget the numbers that select nothing: block sizes, flags. Return the key that is left."""
    kept = scope.keys
    return tuple([
        # Most are not known, or not of a kind that a number is.
        _ANY_KEY if values is ANY
        else values[0].key if len(values) == 1 and type(values[0]) is not Known
        else key_of(values if name in kept else _without_numbers(bound, name, values))
        for name, values in bound.items()
    ])  # fmt: skip


def _without_numbers(bound: dict[str, Values], name: str, values: Values) -> Values:
    for value in values:
        if type(value) is Known and type(value.obj) in _NUMBERS:
            others = tuple([v for v in values if not _is_number(v)])
            bound[name] = union(others, ANY) if others else ANY
            return bound[name]
    return values


def _is_number(value: Value) -> bool:
    return type(value) is Known and type(value.obj) in _NUMBERS


def _generalized(bound: dict[str, Values]) -> dict[str, Values]:
    """The same without constants and the insides of objects, which may differ at every call."""
    return {name: union(*((_general(v),) for v in values)) for name, values in bound.items()}


def _general(value: Value) -> Value:
    if is_constant(value):
        return UNKNOWN
    if isinstance(value, (Sequence, TableValue)) and not carries(value):
        # Nothing in it launches; all that is kept is whether a call of a member is reported.
        lost = any(isinstance(v, Unknown) and v.why for v in table_values(value))
        return type(value)(rest=(ITEM,) if lost else ANY)
    if isinstance(value, Instance) and not any(
        isinstance(v, (LaunchValue, Local, BoundMethod, Partial, Known)) and not is_constant(v)
        for v in value.arguments.every()
    ):
        return Instance(value.cls, UNKNOWN_ARGUMENTS)
    return value


def _give_self(fn: types.FunctionType, bound: dict[str, Values]) -> None:
    """Give a method that is read by itself an instance of its class for `self`."""
    cls = owner_of(fn)
    if cls is None or not fn.__code__.co_argcount:
        return
    first = fn.__code__.co_varnames[0]
    stored = class_attribute(cls, fn.__name__)
    if is_instance(stored, staticmethod) or not all(isinstance(v, Unknown) for v in bound[first]):
        return
    is_class = is_instance(stored, classmethod)
    bound[first] = (Known(cls) if is_class else Instance(Known(cls), UNKNOWN_ARGUMENTS),)
