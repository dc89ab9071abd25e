"""Whether a function can have anything to do with a kernel, told without parsing it.

Most helpers compute sizes. What a code object mentions by name is known from its bytes; where
nothing it mentions leads to a kernel, an operator or code that cannot be read, the function is
not worth parsing.
"""

from __future__ import annotations

import ast
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
from .containers import SEQUENCES, opened
from .frames import Local
from .objects import (
    C_FUNCTIONS,
    builtin_named,
    class_attribute,
    is_c_function,
    is_installed,
    is_instance,
    is_leaf,
    is_leaf_module,
    is_module_instance,
    is_registered_op,
    is_set,
    is_subclass,
    relative_name,
    wrapped,
)
from .values import Bound, Known, Launch, Operator, Partial, Sequence, Table, Unknown, Value

# Names that let code reach anything at all.
_OPEN_DOORS = frozenset(
    {"eval", "exec", "globals", "vars", "locals", "__import__", "import_module", "ops"}
)
# By id, because comparing or hashing a class may run code of its metaclass.
_CONSTANTS = frozenset(map(id, (str, int, float, bool, type(None))))
_PLAIN = (str, int, float, bool, complex, bytes, type(None), torch.dtype, torch.device, enum.Enum)
_INERT = _CONSTANTS | {id(torch.dtype), id(torch.device)}
_MOST_MEMBERS = 64
# Calling one calls the function in it.
_HOLDERS = (types.MethodType, functools.partial, staticmethod, classmethod)


class Reach:
    """Remembers, for one reading, what leads nowhere."""

    def __init__(self) -> None:
        self.leads: dict[int, bool] = {}
        # Each object asked about, kept so that no other takes its id, and what is below it.
        self.seen: dict[int, tuple[Any, Iterable[Any] | None]] = {}

    def leads_on(self, obj: Any) -> bool:
        """Whether calling a function or making a class's object could launch something."""
        known = self.leads.get(id(obj))
        return self._search(obj) if known is None else known

    def _search(self, obj: Any) -> bool:
        # Breadth first: a kernel lies a step or two away, if there is one.
        queue = [obj]
        above = {id(obj): 0}
        for one in queue:
            known = self.leads.get(id(one))
            if known is False:
                continue
            entry = self.seen.get(id(one))
            if entry is None:
                entry = self.seen[id(one)] = (one, self._below(one))
            below = entry[1]
            if known or below is None:
                self._leads(id(one), above)
                return True
            for inner in below:
                if id(inner) not in above and id(type(inner)) not in _CONSTANTS:
                    above[id(inner)] = id(one)
                    queue.append(inner)
        # Everything on the way was followed to its end.
        self.leads.update(dict.fromkeys(above, False))
        return False

    def _leads(self, last: int, above: dict[int, int]) -> None:
        """Keep that an object leads on, and so all those on the way to it."""
        while last:
            self.leads[last] = True
            last = above[last]

    @staticmethod
    def _below(obj: Any) -> Iterable[Any] | None:  # noqa: C901  # a case for each kind
        """What an object leads to, or None where it matters by itself."""
        kind = type(obj)
        if kind is types.FunctionType:
            return _below_function(obj)
        if kind is dict:
            return list(itertools.islice(obj.values(), _MOST_MEMBERS))
        if kind is tuple or kind is list:
            return obj[:_MOST_MEMBERS]  # type: ignore[no-any-return]
        if issubclass(kind, _PLAIN) or (_is_bare(kind) and is_leaf(kind)):
            return ()
        if is_registered_op(obj) or _compat.kernels.launched_kernel(obj) is not None:
            return None
        if is_instance(obj, types.ModuleType):
            # Its attributes were asked for by name.
            return None if _compat.operators.is_space(obj) else ()
        if is_instance(obj, type):
            return _below_class(obj)
        if is_c_function(obj):
            return () if is_leaf(obj) else None
        if is_instance(obj, _HOLDERS):
            return _parts(obj)
        container = opened(Known(obj))
        if container is not None:
            return _members(container)
        inner = wrapped(obj)
        if inner is not None:
            return (inner,)
        if is_leaf(obj) and not is_module_instance(obj):
            return ()
        return _below_object(obj)


def _below_function(fn: types.FunctionType) -> list[Any] | None:
    if fn.__dict__ and is_registered_op(fn):
        return None
    if is_leaf(fn):
        return _below_leaf(fn)
    return None if _leads_by_look(fn) else _names_lead_to(fn)


def _names_lead_to(fn: types.FunctionType) -> list[Any] | None:
    said = mentions(fn.__code__)
    modules = _imported(fn, said.imports) if said.imports else []
    if None in modules:
        return None
    found: list[Any] = []
    for cell in fn.__closure__ or ():
        if not is_set(cell):
            return None
        found.append(cell.cell_contents)
    held = fn.__globals__
    for name in said.globals_read:
        value = held.get(name, MISSING)
        if value is not MISSING:
            found.append(value)
        elif builtin_named(name) is MISSING:
            return None
    modules += [v for v in found if issubclass(type(v), types.ModuleType) and not is_leaf(v)]
    if modules and "getattr" in said.names:
        return None
    for module in modules:
        found += _named_in(module, said.names)
    return found


def _imported(fn: types.FunctionType, imports: Iterable[tuple[str, int]]) -> list[Any]:
    """The modules that a function imports, leaves left out; None for one not loaded yet."""
    found = []
    for name, level in imports:
        absolute = name if level == 0 else relative_name(fn, name, level)
        if absolute is None or _may_be_imported(absolute):
            found.append(sys.modules.get(absolute or ""))
    return found


def _may_be_imported(name: str) -> bool:
    return not is_leaf_module(name) and is_installed(name.partition(".")[0])


def _named_in(module: Any, names: frozenset[str]) -> list[Any]:
    """The parts of a module that a function may mean, submodules' parts included."""
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
    if is_leaf(cls) or is_subclass(cls, enum.Enum) or is_subclass(cls, BaseException):
        return []
    found: list[Any] = []
    for base in type.__getattribute__(cls, "__mro__"):
        if is_leaf(base):
            continue
        for stored in type.__getattribute__(base, "__dict__").values():
            kind = type(stored)
            if id(kind) in _CONSTANTS:
                continue
            inner = stored
            if issubclass(kind, (staticmethod, classmethod)):
                inner = stored.__func__
            elif issubclass(kind, property):
                inner = stored.fget
            # A dataclass's methods are made up, and have no text.
            if type(inner) is not types.FunctionType or _lines(inner):
                found.append(inner)
    return found


# Kinds of objects that lead on without holding anything in a `__dict__`.
_LEADING = (*C_FUNCTIONS, *_HOLDERS, *SEQUENCES, dict, types.MappingProxyType, type)
# By id, as in `_CONSTANTS`; the value keeps its class, so that the id stays its own.
_bare: dict[int, tuple[type[Any], bool]] = {}


def _is_bare(kind: type[Any]) -> bool:
    """Whether the objects of a class hold nothing that could be called: fields of a tuple."""
    known = _bare.get(id(kind))
    if known is None:
        bare = not _compat.kernels.has_dict(kind) and not issubclass(kind, _LEADING)
        known = _bare[id(kind)] = (kind, bare)
    return known[1]


def _below_object(obj: Any) -> list[Any] | None:
    """What an object of somebody's own class leads to: its class, and what it holds."""
    cls = type(obj)
    for name in ("__getattr__", "__slots__"):
        stored = class_attribute(cls, name)
        ours = is_instance(stored, types.FunctionType) and is_leaf(stored)
        if stored is not MISSING and not ours:
            return None
    held = list(_compat.kernels.instance_dict(obj).values())
    return None if len(held) > _MOST_MEMBERS else [cls, *held]


def _below_leaf(fn: types.FunctionType) -> list[Any] | None:
    if _compat.kernels.grid_bound_kernel(fn) is not None:
        return None
    found = [] if wrapped(fn) is None else [wrapped(fn)]
    if "registry" in fn.__dict__:
        return None
    for cell in fn.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:
            continue
        if is_instance(held, types.FunctionType):
            found.append(held)
    return found


def _parts(obj: Any) -> list[Any]:
    if is_instance(obj, types.MethodType):
        return [obj.__func__, obj.__self__]
    if is_instance(obj, (staticmethod, classmethod)):
        return [obj.__func__]
    return [obj.func, *obj.args, *obj.keywords.values()]


def _members(container: Any) -> list[Any]:
    groups = container.items.values() if isinstance(container, Table) else container.items
    return [value.obj for group in list(groups)[:_MOST_MEMBERS] for value in group]


def carries(value: Value) -> bool:
    """Whether a function that is given this may launch something through it."""
    if isinstance(value, Unknown):
        return False
    known: bool | None = value.__dict__.get("carrying")
    if known is None:
        # Values are of one reading, and asked for often.
        known = value.__dict__["carrying"] = _carries(value)
    return known


def _carries(value: Value) -> bool:
    if isinstance(value, Known):
        obj = value.obj
        kind = type(obj)
        if id(kind) in _CONSTANTS:
            return False
        if kind is types.FunctionType:
            return is_callback(value)
        if issubclass(kind, (types.ModuleType, type)) or is_c_function(obj):
            return not is_leaf(obj) or _compat.operators.is_space(obj)
        if is_instance(obj, _HOLDERS) or is_registered_op(obj):
            return True
        if _compat.kernels.launched_kernel(obj) is not None or wrapped(obj) is not None:
            return True
    container = opened(value)
    if container is not None:
        return _members_carry(container)
    return not isinstance(value, Known) or not is_leaf(value.obj) or is_module_instance(value.obj)


def _members_carry(container: Sequence | Table) -> bool:
    groups = container.items.values() if isinstance(container, Table) else container.items
    for group in (*groups, container.rest):
        for inner in group:
            plain = type(inner) is Known and id(type(inner.obj)) in _INERT
            if not plain and carries(inner):
                return True
    return False


def is_callback(value: Value) -> bool:
    """Whether a value is a function, as far as a callee that takes one is concerned."""
    if not isinstance(value, Known):
        if isinstance(value, Local):
            return not isinstance(value.scope.node, ast.ClassDef)
        if isinstance(value, (Bound, Partial)):
            return is_callback(value.fn)
        return isinstance(value, (Launch, Operator))
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
    return is_registered_op(obj) or _compat.kernels.is_traced_wrapper(obj)


def is_plain_leaf(fn: types.FunctionType) -> bool:
    """Whether a function is a leaf's and wraps nothing of anybody else's."""
    if not is_leaf(fn) or _compat.kernels.grid_bound_kernel(fn) is not None:
        return False
    below = wrapped(fn)
    if is_instance(below, types.FunctionType) and below is not fn:
        return is_plain_leaf(below)
    return below is None and not callables_held(fn)


def callables_held(fn: types.FunctionType) -> list[Any]:
    """Functions in a leaf function's closure that are not a leaf's."""
    found = []
    for cell in fn.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:
            continue
        if is_instance(held, types.FunctionType) and not is_leaf(held):
            found.append(held)
    return found


# Both keyed by identity; the value keeps its code object, so that the id stays its own.
_looks: dict[int, tuple[types.CodeType, bool]] = {}
_calling: dict[int, tuple[types.CodeType, bool]] = {}


def _leads_by_look(fn: types.FunctionType) -> bool:
    """Whether a function's code alone says that it may lead anywhere.

    It has a name that opens every door, or `](`, something taken and called, or no text at all.
    """
    code = fn.__code__
    known = _looks.get(id(code))
    if known is None:
        names = mentions(code).names
        leads = bool(names & _OPEN_DOORS) or ("modules" in names and "sys" in names)
        if not leads:
            text = _text_of(fn)
            leads = not text or "](" in text
        known = _looks[id(code)] = (code, leads)
    return known[1]


def calls_a_parameter(fn: types.FunctionType) -> bool:
    """Whether a function's text has one of its parameters and a bracket after it."""
    code = fn.__code__
    known = _calling.get(id(code))
    if known is None:
        text = _text_of(fn)
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        known = _calling[id(code)] = (code, any(f"{name}(" in text for name in names))
    return known[1]


def _text_of(fn: types.FunctionType) -> str:
    code = fn.__code__
    last = max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno)
    return "".join(_lines(fn)[code.co_firstlineno - 1 : last])


def _lines(fn: types.FunctionType) -> list[str]:
    return linecache.getlines(fn.__code__.co_filename, fn.__globals__)
