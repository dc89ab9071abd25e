"""Which kernels and operators a function may launch: those it leads to, and what its text does.

A walk comes upon every kernel that a function may launch. The texts of the functions that name
one tell which are launched for certain: `kernel[grid]`, `kernel.run(...)`, `operator(...)`.
"""

from __future__ import annotations

import builtins
import itertools
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from .. import _compat
from .._compat import bytecode, reach
from .._compat.bytecode import Expr
from ..model import LAUNCHED, MENTIONED, Discovery, KernelRef, NestedOp, Unresolved

_kernels, _operators = _compat.kernels, _compat.operators
# So many objects may a name or a table stand for in a text.
_MOST = 64


def find_kernels(fn: Any, max_depth: int = 8, *, by_calls: bool = False) -> Discovery:
    """What a function may launch; `opforge.find_kernels`, which also takes registered operators.

    With `by_calls`, which takes longer, a launch or a call counts only if calls lead to its text; a
    function that is named may be passed on and never called.
    """
    walk = reach.Walk(_body(fn), max_depth=max_depth)
    naming = {
        id(reached.caller)
        for places in (*walk.kernels.values(), *walk.ops.values())
        for reached in places
    }
    called = _called_functions(walk) if by_calls else naming
    texts = [_Text(r) for r in walk.functions if id(r) in naming and id(r) in called]
    gaps = [Unresolved(*gap) for gap in walk.gaps]
    if not walk.kernels and walk.functions:
        gaps += _Text(walk.functions[0]).unknown_launches()
    return Discovery(
        tuple(_kernel_refs(walk, texts)),
        tuple(dict.fromkeys(gaps)),
        tuple(_nested_ops(walk, texts)),
        tuple(Unresolved(*gap) for gap in walk.unbound.values()),
        walk.wraps,
    )


def _body(fn: Any) -> Any:
    """What to read of an operator: the function it was made of."""
    held = fn.__dict__ if type(fn) is types.FunctionType else _kernels.instance_dict(fn)
    if _operators.MARK in held:
        return held.get("__wrapped__") or held.get("fn") or fn
    return _operators.body_of(fn) or fn


def _kernel_refs(walk: reach.Walk, texts: list[_Text]) -> Iterable[KernelRef]:
    refs: dict[int, KernelRef] = {}
    for text in texts:
        for kernel, launch, place, dropped in text.launches():
            via = f"{launch} in {text.fn.__qualname__} ({place})"
            ref = refs.get(id(kernel)) or _ref(kernel, via, LAUNCHED)
            if dropped:
                options = (*ref.dropped, *(f"{option} ({place})" for option in dropped))
                ref = replace(ref, dropped=tuple(dict.fromkeys(options)))
            refs[id(kernel)] = ref
    for key, (first, *_) in walk.kernels.items():
        if key not in refs:
            refs[key] = _ref(first.value, _via(first), MENTIONED)
    return refs.values()


def _ref(kernel: Any, via: str, grade: Any) -> KernelRef:
    name, location = _kernels.name_and_location(kernel)
    return KernelRef(name, kernel, location, via, grade)


def _via(reached: reach.Reached) -> str:
    """`named in helpers.launch (file:line), through host`."""
    if reached.caller is None:
        return "it is what was asked about"
    *above, last = reached.path
    through = f", through {', '.join(fn.__qualname__ for fn in above)}" if above else ""
    return f"named in {last.__qualname__} ({reach.place_of(last)}){through}"


def _nested_ops(walk: reach.Walk, texts: list[_Text]) -> Iterable[NestedOp]:
    ops: dict[str, NestedOp] = {}
    for text in texts if walk.ops else ():
        for name, op, place in text.operator_calls():
            ops.setdefault(name, NestedOp(name, place, op))
    for name, (first, *_) in walk.ops.items():
        # A packet is named on the way to its overload.
        if not any(known.startswith(f"{name}.") for known in ops):
            place = "unknown" if first.caller is None else reach.place_of(first.caller.value)
            ops.setdefault(name, NestedOp(name, place, _operators.find(name), called=False))
    return ops.values()


def _called_functions(walk: reach.Walk) -> set[int]:
    """The functions that the first calls, and those that these call, by the id of what was reached.

    Only what the code shows counts: not a callback, nor what an operator such as `+` calls.
    """
    by_function: dict[int, list[reach.Reached]] = {}
    for reached in walk.functions:
        by_function.setdefault(id(reached.value), []).append(reached)
    waiting = [reached for reached in walk.functions if reached.caller is None]
    called = {id(reached) for reached in waiting}
    while waiting:
        for value in _Text(waiting.pop()).callees():
            for run in _Callee(value).functions:
                new = [r for r in by_function.get(id(run.value), ()) if id(r) not in called]
                called.update(map(id, new))
                waiting += new
    return called


class _Callee(reach.Walk):
    """The functions that run where an object is called."""

    def __init__(self, value: Any) -> None:
        # `Function.apply` calls other methods of the class; a user's own method shows what it does.
        is_own = type(value) is types.MethodType and not reach.is_foreign_function(value.__func__)
        self._callee = value.__func__ if is_own else value
        super().__init__(self._callee, max_depth=0)

    def _read(self, reached: reach.Reached) -> None:
        self.functions.append(reached)

    def _members(self, cls: type[Any], owner: Any, *, is_used: bool = True) -> None:
        if cls is not owner:
            names = ["__call__", "forward"]
        else:
            names = ["__init__"] if cls is self._callee else [*reach.CALLED]
        for member in [reach.class_attribute(cls, name) for name in names]:
            if is_used and id(type(member)) in reach.METHODS:
                self._visit(member, owner=owner)


class _Text:
    """What the code of one function, with that of the functions in it, launches and calls."""

    def __init__(self, reached: reach.Reached) -> None:
        self.fn, self._owner = reached.value, reached.owner
        self._codes = [*reach.with_nested(self.fn.__code__)]
        self._known: dict[int, list[Any]] = {}

    def launches(self) -> Iterator[tuple[Any, str, str, list[str]]]:
        """The kernel of each launch, the launch, where it is, and the options a graph drops."""
        for code in self._codes:
            text = bytecode.expressions(code)
            for at in text.launchers:
                launcher = text.expr(at)
                for value in self._values(launcher.of, code):
                    kernel = _kernels.launched_kernel(value)
                    if kernel is not None:
                        keywords = text.keywords(at)
                        dropped = _kernels.dropped_options(kernel, keywords) if keywords else []
                        yield kernel, f"{_shown(launcher.of)}[...]", _place(launcher, code), dropped

    def operator_calls(self) -> Iterator[tuple[str, Any, str]]:
        """Each call of an operator that is not torch's own: its name, it, and where."""
        for callee, code in self._calls():
            for value in self._values(callee, code):
                name, op = _called(value)
                if name and not _operators.is_built_in(name):
                    yield name, op, _place(callee, code)

    def callees(self) -> Iterator[Any]:
        for callee, code in self._calls():
            yield from self._values(callee, code)

    def unknown_launches(self) -> Iterator[Unresolved]:
        """Launches of what only a caller, the function itself or what it calls knows."""
        for callee, code in self._calls():
            source = callee
            while source.kind in {"attribute", "item"}:
                source = source.of
            is_computed = callee.kind == "item" and source.kind in {"local", "call"}
            if is_computed and not self._values(source, code):
                why = "what it holds is known only when the function runs"
                parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
                if source.kind == "local" and source.of in parameters:
                    why = f"parameter {source.of!r} is given by the caller"
                yield Unresolved(f"{_shown(callee.of)}[...]", _place(callee, code), why)

    def _calls(self) -> Iterator[tuple[Expr, types.CodeType]]:
        """What is called, and the code that does."""
        for code in self._codes:
            text = bytecode.expressions(code)
            yield from ((text.expr(callee), code) for callee in text.calls.values())

    def _values(self, expr: Expr, code: types.CodeType) -> list[Any]:
        """What an expression may stand for, as far as the code shows it."""
        if id(expr) not in self._known:
            # A name may be assigned from itself.
            self._known[id(expr)] = []
            self._known[id(expr)] = [*itertools.islice(self._evaluated(expr, code), _MOST)]
        return self._known[id(expr)]

    def _evaluated(  # noqa: C901  # a table of kinds
        self, expr: Expr, code: types.CodeType
    ) -> Iterator[Any]:
        if expr.kind == "local":
            yield from self._local(expr.of, code)
        elif expr.kind == "outside":
            yield from self._outside(expr.of, code)
        elif expr.kind == "attribute":
            for value in self._values(expr.of, code):
                yield from _attribute(value, expr.detail)
        elif expr.kind == "item":
            for value in self._values(expr.of, code):
                yield from _items(value, expr.detail)
        elif expr.kind == "import":
            yield sys.modules.get(reach.absolute_name(self.fn, expr.of, expr.detail))
        elif expr.kind == "from":
            for module in self._values(expr.of, code):
                yield from _attribute(module, expr.detail)
                name = _kernels.instance_dict(module).get("__name__")
                yield sys.modules.get(f"{name}.{expr.detail}")
        elif expr.kind == "call":
            # What `wrap_triton(kernel)` or `torch.compile(function)` is given.
            callees = self._values(expr.of, code)
            arguments = map(bytecode.expressions(code).expr, expr.detail)
            given = [value for each in arguments for value in self._values(each, code)]
            if any(map(_kernels.is_wrap_triton, callees)):
                yield from filter(_kernels.is_kernel, given)
            elif any(map(reach.is_foreign_function, callees)):
                functions = (fn for fn in given if type(fn) is types.FunctionType)
                yield from itertools.filterfalse(reach.is_foreign_function, functions)

    def _local(self, name: str, code: types.CodeType) -> Iterator[Any]:
        assigned = bytecode.expressions(code).stores.get(name, ())
        for at in assigned:
            yield from self._values(bytecode.expressions(code).expr(at), code)
        is_first = code is self.fn.__code__ and code.co_varnames[:1] == (name,)
        if not assigned and is_first and self._owner is not None:
            yield self._owner

    def _outside(self, name: str, code: types.CodeType) -> Iterator[Any]:
        own = self.fn.__code__
        if name in own.co_freevars:
            value = reach.contents((self.fn.__closure__ or ())[own.co_freevars.index(name)])
            if value is not reach.ABSENT:
                yield value
        elif name in own.co_cellvars:
            yield from self._local(name, code)
        elif name in self.fn.__globals__:
            yield self.fn.__globals__[name]
        elif name in vars(builtins):
            yield vars(builtins)[name]


def _shown(expr: Expr) -> str:
    """An expression as its author wrote it, as far as it is names and constants."""
    if expr.kind == "attribute":
        return f"{_shown(expr.of)}.{expr.detail}"
    if expr.kind == "item":
        key = expr.detail
        return f"{_shown(expr.of)}[{repr(key.of) if key.kind == 'constant' else '...'}]"
    return str(expr.of) if expr.kind in {"local", "outside"} else "(...)"


def _place(expr: Expr, code: types.CodeType) -> str:
    return f"{code.co_filename}:{bytecode.expressions(code).line(expr.offset)}"


def _called(value: Any) -> tuple[str | None, Any]:
    """The operator that calling an object calls."""
    if type(value) is _Unregistered:
        return value, None
    held = value.__dict__ if type(value) is types.FunctionType else _kernels.instance_dict(value)
    op = held.get(_operators.MARK, value)
    return _operators.operator_name(op), op


class _Unregistered(str):
    """`torch.ops.ns` or `torch.ops.ns.op`, of which torch knows nothing."""

    __slots__ = ()


def _attribute(value: Any, name: str) -> Iterator[Any]:
    """What an attribute holds, without running code of its owner's."""
    kind = type(value)
    op = _of_operators(value, name)
    if op is not None:
        yield op
    elif _kernels.is_kernel(value):
        if name == "fn":
            yield value.fn
    elif issubclass(kind, type):
        yield from _stored(reach.class_attribute(value, name), value)
    else:
        held = _kernels.instance_dict(value)
        modules = held.get("_modules") if issubclass(kind, torch.nn.Module) else None
        if name in held:
            yield held[name]
        elif type(modules) is dict and name in modules:
            yield modules[name]
        elif not issubclass(kind, types.ModuleType):
            yield from _stored(reach.class_attribute(kind, name), value)


def _of_operators(value: Any, name: str) -> Any:
    """What `torch.ops`, a namespace of it or an operator has under a name; None of all else."""
    if _operators.is_root(value):
        return _Unregistered(name)
    space = str(value) if type(value) is _Unregistered else _operators.namespace_name(value)
    if space is not None and "::" not in space:
        return _operators.find(f"{space}::{name}") or _Unregistered(f"{space}::{name}")
    op = _operators.operator_name(value)
    if op is None or name == "default":
        return None if op is None else value
    return _operators.find(f"{op}.{name}") or value


def _stored(stored: Any, owner: Any) -> Iterator[Any]:
    kind = type(stored)
    if kind is types.MemberDescriptorType:
        try:
            yield stored.__get__(owner)
        except (AttributeError, TypeError):
            return
    elif kind is classmethod:
        yield types.MethodType(stored.__func__, owner)
    elif stored is not reach.ABSENT and kind is not property:
        yield stored.__func__ if kind is staticmethod else stored


def _items(value: Any, key: Expr) -> Iterator[Any]:
    """What a table has under a key; any of its values where the code does not show the key."""
    kind = type(value)
    if kind is not dict and kind is not list and kind is not tuple:
        return
    table = value if kind is dict else dict(enumerate(value))
    if key.kind != "constant":
        yield from table.values() if len(table) <= _MOST else ()
    elif key.of.__hash__ is not None and key.of in table:
        yield table[key.of]
