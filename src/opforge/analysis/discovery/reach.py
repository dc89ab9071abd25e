"""Whether a function can lead to a kernel, decided without parsing it.

Most helpers compute sizes. The bytecode shows which names a function mentions; where none of them
leads to a kernel, an operator or code that cannot be read, the function is not parsed.
"""

from __future__ import annotations

import ast
import builtins
import enum
import functools
import itertools
import linecache
import sys
import types
from collections.abc import Iterable
from typing import Any

import torch

from ... import _compat
from ...model import MISSING
from .bytecode import mentions
from .containers import MOST_MEMBERS, SEQUENCES, opened, table_values
from .frames import Local
from .identity import cached_by_identity
from .lookups import lookups
from .objects import (
    C_FUNCTIONS,
    absolute_name,
    applied_class,
    class_attribute,
    closure_values,
    is_instance,
    is_leaf,
    is_module_instance,
    is_registered_op,
    may_be_imported,
    wrapped,
)
from .source import last_line
from .values import (
    BoundMethod,
    Known,
    LaunchValue,
    OperatorValue,
    Partial,
    TableValue,
    Unknown,
    Value,
)

# Names that give code access to anything.
_OPEN_DOORS = frozenset(
    {"eval", "exec", "globals", "vars", "locals", "__import__", "import_module", "ops"}
)
# Together they do, unless the text shows which modules are looked up.
_LOOKING_UP = frozenset({"sys", "modules"})
# By id, because comparing or hashing a class may run its metaclass's code.
_CONSTANTS = frozenset(map(id, (str, int, float, bool, type(None))))
_PLAIN = (str, int, float, bool, complex, bytes, type(None), torch.dtype, torch.device, enum.Enum)
_MOST_MEMBERS = 64
_LISTS = frozenset(map(id, (list, tuple, set, frozenset)))
# Objects of exactly these types lead nowhere. A plain module does not: the parts of it that matter
# were looked up by name. `torch.ops` is of another type.
_DEAD_ENDS = _CONSTANTS | {
    id(kind)
    for kind in (
        bytes, complex, torch.dtype, torch.device, types.ModuleType, types.GetSetDescriptorType,
        types.MemberDescriptorType,
    )
}  # fmt: skip
_BUILTINS = vars(builtins)
# Calling one calls the function in it.
_HOLDERS = (types.MethodType, functools.partial, staticmethod, classmethod)


# What is a leaf by the module it comes from.
_WITH_A_HOME = (types.ModuleType, type, *C_FUNCTIONS)


class Reach:
    """Remembers, for one reading, what leads to a kernel and what does not."""

    def __init__(self) -> None:
        self.leads: dict[int, bool] = {}
        # Each object asked about, kept so that no other takes its id, with what it leads to.
        self.seen: dict[int, tuple[Any, Iterable[Any] | None]] = {}
        # The functions whose text does not show that they lead on, and whether each is a leaf's.
        self.silent: dict[int, tuple[types.FunctionType, bool]] = {}
        # The types, by id, whose objects lead nowhere.
        self.dead_ends = set(_DEAD_ENDS)

    def leads_on(self, obj: Any) -> bool:
        """Whether calling a function or instantiating a class could launch something."""
        here = id(obj)
        known = self.leads.get(here)
        if known is None:
            if type(obj) is types.FunctionType and self._shows_a_lead(obj, here):
                known = self.leads[here] = True
                self.seen[here] = (obj, None)
            else:
                known = self._search(obj)
        return known

    def _shows_a_lead(self, fn: types.FunctionType, here: int) -> bool:
        if here in self.silent:
            return False
        leaf = is_leaf(fn)
        if not leaf and _leads_by_look(fn.__code__, fn.__globals__):
            return True
        self.silent[here] = (fn, leaf)
        return False

    def _search(self, obj: Any) -> bool:
        # Breadth first: if there is a kernel, it is a step or two away.
        leads, seen, dead_ends = self.leads, self.seen, self.dead_ends
        queue = [obj]
        above = {id(obj): 0}
        for one in queue:
            here = id(one)
            if here in seen:
                below = seen[here][1]
            else:
                silent = self.silent.get(here)
                below = self._below(one) if silent is None else _below_function(*silent)
                seen[here] = (one, below)
            if below is None:
                self._leads(here, above)
                return True
            for inner in below:
                there = id(inner)
                if id(type(inner)) in dead_ends or there in above:
                    continue
                known = leads.get(there)
                if known is False:
                    continue
                above[there] = here
                # A function whose text shows it need not wait for its turn.
                if known is None and type(inner) is types.FunctionType and there not in seen:
                    known = self._shows_a_lead(inner, there)
                if known:
                    self._leads(there, above)
                    return True
                queue.append(inner)
        # Everything on the way was followed to the end.
        self.leads.update(dict.fromkeys(above, False))
        return False

    def _leads(self, last: int, above: dict[int, int]) -> None:
        """Record that an object leads on, and with it all those on the way to it."""
        while last:
            self.leads[last] = True
            last = above[last]

    def _below(self, obj: Any) -> Iterable[Any] | None:  # noqa: C901  # a case for each kind
        """What an object other than a function leads to, or None where it leads on by itself."""
        kind = type(obj)
        if kind is dict:
            return list(itertools.islice(obj.values(), _MOST_MEMBERS))
        if id(kind) in _LISTS:
            return list(itertools.islice(obj, _MOST_MEMBERS))
        if issubclass(kind, _PLAIN) or (_is_bare(kind) and is_leaf(kind)):
            self.dead_ends.add(id(kind))
            return ()
        if is_registered_op(obj) or _compat.kernels.launched_kernel(obj) is not None:
            return None
        if issubclass(kind, types.ModuleType):
            # The attributes that matter were looked up by name.
            return None if _compat.operators.is_space(obj) else ()
        if issubclass(kind, type):
            return _below_class(obj)
        if issubclass(kind, C_FUNCTIONS):
            return () if is_leaf(obj) else None
        if issubclass(kind, _HOLDERS):
            return _parts(obj)
        container = opened(Known(obj))
        if container is not None:
            members = table_values(container)[:_MOST_MEMBERS]
            return [v.obj for v in members if isinstance(v, Known)]
        inner = wrapped(obj)
        if inner is not None:
            return (inner,)
        if is_leaf(obj) and not is_module_instance(obj):
            return ()
        return _below_object(obj)


def _below_function(fn: types.FunctionType, leaf: bool) -> list[Any] | None:  # noqa: FBT001
    """The same of a function whose text does not show it."""
    if fn.__dict__ and is_registered_op(fn):
        return None
    return _below_leaf(fn) if leaf else _names_lead_to(fn)


def _names_lead_to(fn: types.FunctionType) -> list[Any] | None:
    said = mentions(fn.__code__)
    modules = _imported(fn, said.imports) if said.imports else []
    names = said.names
    looked_up = lookups(fn.__code__, fn.__globals__) if names >= _LOOKING_UP else None
    if looked_up is not None:
        modules += [sys.modules.get(name) for name in looked_up.modules]
        names |= looked_up.attributes
    if None in modules:
        return None
    found = closure_values(fn) if fn.__closure__ else []
    if len(found) < len(fn.__closure__ or ()):
        return None
    held = fn.__globals__
    for name in said.globals_read:
        if name in held:
            found.append(held[name])
        elif name not in _BUILTINS:
            return None
    modules += [v for v in found if issubclass(type(v), types.ModuleType) and not is_leaf(v)]
    if modules and "getattr" in names and looked_up is None:
        return None
    for module in modules:
        found += _named_in(module, names)
    return found


def _imported(fn: types.FunctionType, imports: Iterable[tuple[str, int]]) -> list[Any]:
    """The modules that a function imports, without leaves; None for one not loaded yet."""
    found = []
    for name, level in imports:
        absolute = absolute_name(fn, name, level)
        if absolute is None or may_be_imported(absolute):
            found.append(sys.modules.get(absolute or ""))
    return found


def _named_in(module: Any, names: frozenset[str]) -> list[Any]:
    """The parts of a module that a function may refer to, with those of its submodules."""
    found = []
    held = _compat.kernels.instance_dict(module)
    for name in names:
        value = held.get(name)
        if is_instance(value, types.ModuleType) and not is_leaf(value) and value is not module:
            found += [v for n, v in vars(value).items() if n in names]
        if value is not None:
            found.append(value)
    return found


def _below_class(cls: type[Any]) -> list[Any] | None:
    bases = type.__getattribute__(cls, "__mro__")
    if is_leaf(cls) or enum.Enum in bases or BaseException in bases:
        return []
    found: list[Any] = []
    # Most methods of a class are in one file.
    file, has_text = None, False
    for base in bases:
        if is_leaf(base):
            continue
        for stored in type.__getattribute__(base, "__dict__").values():
            kind = type(stored)
            if id(kind) in _DEAD_ENDS:
                continue
            inner = stored if kind is types.FunctionType else _below_descriptor(stored)
            if type(inner) is types.FunctionType:
                if inner.__code__.co_filename != file:
                    file, has_text = inner.__code__.co_filename, _has_text(inner)
                # A dataclass's methods are generated, and have no source.
                if not has_text:
                    continue
            found.append(inner)
    return found


def _below_descriptor(stored: Any) -> Any:
    if issubclass(type(stored), (staticmethod, classmethod)):
        return stored.__func__
    return stored.fget if issubclass(type(stored), property) else stored


# Kinds of objects that may lead on although they hold nothing in a `__dict__`.
_LEADING = (*C_FUNCTIONS, *_HOLDERS, *SEQUENCES, dict, types.MappingProxyType, type)


@cached_by_identity
def _is_bare(kind: type[Any]) -> bool:
    """Whether objects of a class hold nothing that could be called."""
    return not _compat.kernels.has_dict(kind) and not issubclass(kind, _LEADING)


def _below_object(obj: Any) -> list[Any] | None:
    """What an object of a class of the user's leads to: its class, and what it holds."""
    cls = type(obj)
    for name in ("__getattr__", "__slots__"):
        stored = class_attribute(cls, name)
        ours = is_instance(stored, types.FunctionType) and is_leaf(stored)
        if stored is not MISSING and not ours:
            return None
    held = list(_compat.kernels.instance_dict(obj).values())
    return None if len(held) > _MOST_MEMBERS else [cls, *held]


def _below_leaf(fn: types.FunctionType) -> list[Any] | None:
    if _compat.kernels.grid_bound_kernel(fn) is not None or "registry" in fn.__dict__:
        return None
    below = wrapped(fn)
    held = [v for v in closure_values(fn) if is_instance(v, types.FunctionType)]
    return held if below is None else [below, *held]


def _parts(obj: Any) -> list[Any]:
    if is_instance(obj, types.MethodType):
        return [obj.__func__, obj.__self__]
    if is_instance(obj, (staticmethod, classmethod)):
        return [obj.__func__]
    return [obj.func, *obj.args, *obj.keywords.values()]


def carries(value: Value) -> bool:
    """Whether a function that is given this may launch something through it."""
    if isinstance(value, Unknown):
        return False
    known = value.carrying
    if known is None:
        known = value.carrying = _carries(value)
    return known


def any_carries(values: Iterable[Value]) -> bool:
    """Whether one of them does."""
    for value in values:
        # Written out for what most are: an unknown value, or one asked about before.
        kind = type(value)
        if kind is Unknown:
            continue
        if kind is Known and id(type(value.obj)) in _CONSTANTS:  # type: ignore[attr-defined]
            continue
        known = value.carrying
        if known or (known is None and carries(value)):
            return True
    return False


def _carries(value: Value) -> bool:
    if isinstance(value, Known):
        obj = value.obj
        kind = type(obj)
        if id(kind) in _CONSTANTS:
            return False
        if kind is types.FunctionType:
            return not is_plain_leaf(obj) or is_registered_op(obj)
        if issubclass(kind, _WITH_A_HOME):
            return not is_leaf(obj) or _compat.operators.is_space(obj)
        if issubclass(kind, _HOLDERS) or is_registered_op(obj):
            return True
        if _compat.kernels.launched_kernel(obj) is not None or wrapped(obj) is not None:
            return True
        if id(kind) in _LISTS and _lists_constants(obj):
            return False
    container = opened(value)
    if container is not None:
        items = container.items.values() if isinstance(container, TableValue) else container.items
        return any_carries(itertools.chain(*items, container.rest))
    return not isinstance(value, Known) or not is_leaf(value.obj) or is_module_instance(value.obj)


def _lists_constants(members: Iterable[Any]) -> bool:
    some = itertools.islice(members, MOST_MEMBERS)
    return _CONSTANTS.issuperset(map(id, map(type, some)))


def is_callback(value: Value) -> bool:
    """Whether a value is a function that a callee may be given to call."""
    if not isinstance(value, Known):
        if isinstance(value, Local):
            return not isinstance(value.scope.node, ast.ClassDef)
        if isinstance(value, (BoundMethod, Partial)):
            return is_callback(value.fn)
        return isinstance(value, (LaunchValue, OperatorValue))
    obj = value.obj
    kind = type(obj)
    if id(kind) in _CONSTANTS:
        return False
    if kind is types.FunctionType:
        return not is_plain_leaf(obj) or is_registered_op(obj)
    if kind is types.MethodType:
        return not is_leaf(obj.__func__) or obj.__name__ == "apply"
    if is_instance(obj, functools.partial):
        return is_callback(Known(obj.func))
    if is_instance(obj, (staticmethod, classmethod)):
        return is_callback(Known(obj.__func__))
    if is_module_instance(obj):
        return not is_leaf(type(obj))
    is_apply = applied_class(obj) is not None
    return is_apply or is_registered_op(obj) or _compat.kernels.is_traced_wrapper(obj)


def is_plain_leaf(fn: types.FunctionType) -> bool:
    """Whether a function is a leaf's and wraps no function of the user's."""
    if not is_leaf(fn) or _compat.kernels.grid_bound_kernel(fn) is not None:
        return False
    below = wrapped(fn)
    if is_instance(below, types.FunctionType) and below is not fn:
        return is_plain_leaf(below)
    return below is None and not callables_held(fn)


def callables_held(fn: types.FunctionType) -> list[Any]:
    """Functions of the user's in the closure of a leaf's function."""
    return [v for v in closure_values(fn) if is_instance(v, types.FunctionType) and not is_leaf(v)]


@cached_by_identity
def _leads_by_look(code: types.CodeType, module: dict[str, Any]) -> bool:
    """Whether a function's text alone shows that it may lead anywhere.

    It mentions a name that gives access to anything, calls an item (`](`), or has no source.
    """
    names = mentions(code).names
    if names & _OPEN_DOORS or (names >= _LOOKING_UP and lookups(code, module) is None):
        return True
    text = _text_of(code, module)
    return not text or "](" in text


@cached_by_identity
def calls_a_parameter(code: types.CodeType, module: dict[str, Any]) -> bool:
    """Whether a function's text has one of its parameters followed by a parenthesis."""
    text = _text_of(code, module)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return any(f"{name}(" in text for name in names)


def _text_of(code: types.CodeType, module: dict[str, Any]) -> str:
    lines = linecache.getlines(code.co_filename, module)
    return "".join(lines[code.co_firstlineno - 1 : last_line(code)])


def _has_text(fn: types.FunctionType) -> bool:
    return bool(linecache.getlines(fn.__code__.co_filename, fn.__globals__))
