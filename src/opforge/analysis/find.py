"""Which kernels and operators a function may launch: those it leads to, and what its text does.

A walk comes upon every kernel that a function may launch. The texts of the functions that name
one tell which are launched for certain: `kernel[grid]`, `kernel.run(...)`, `operator(...)`.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from .. import _compat
from .._compat import bytecode, reach
from ..model import LAUNCHED, MENTIONED, Discovery, KernelRef, NestedOp, Unresolved

_kernels, _operators = _compat.kernels, _compat.operators
# So many objects may a name or a table stand for in a text.
_MOST = 64
# Steps of the longest expression that is looked at.
_LONGEST = 500


def find_kernels(fn: Any, max_depth: int = 8, *, by_calls: bool = False) -> Discovery:
    """What a function may launch; `opforge.find_kernels`, which also takes registered operators.

    With `by_calls`, which takes longer, a launch or a call counts only if calls lead to its text; a
    function that is named may be passed on and never called.
    """
    walk = reach.Walk(_body(fn), max_depth=max_depth)
    called = _called_functions(walk) if by_calls else None
    texts = [text for text in _texts(walk) if called is None or id(text.reached) in called]
    gaps = [Unresolved(*gap) for gap in walk.gaps]
    if not walk.kernels and walk.functions:
        gaps += _Text(walk.functions[0]).unknown_launches()
    return Discovery(
        tuple(_kernel_refs(walk, texts)),
        tuple(dict.fromkeys(gaps)),
        tuple(_nested_ops(walk, texts)),
        tuple(Unresolved(*gap) for gap in walk.unbound.values()),
    )


def _kernel_refs(walk: reach.Walk, texts: list[_Text]) -> Iterable[KernelRef]:
    refs: dict[int, KernelRef] = {}
    for text in texts:
        for launch in text.launches():
            ref = refs.get(id(launch.kernel))
            if ref is None:
                name, where = _kernels.name_and_location(launch.kernel)
                via = f"{launch.shown} in {text.fn.__qualname__} ({launch.place})"
                ref = KernelRef(name, launch.kernel, where, via, LAUNCHED)
            refs[id(launch.kernel)] = _dropping(ref, launch) if launch.dropped else ref
    for key, (first, *_) in walk.kernels.items():
        if key not in refs:
            name, where = _kernels.name_and_location(first.value)
            refs[key] = KernelRef(name, first.value, where, _via(first), MENTIONED)
    return refs.values()


def _nested_ops(walk: reach.Walk, texts: list[_Text]) -> Iterable[NestedOp]:
    ops: dict[str, NestedOp] = {}
    for text in texts if walk.ops else ():
        for name, op, place in text.calls():
            ops.setdefault(name, NestedOp(name, place, op))
    for name, (first, *_) in walk.ops.items():
        # A packet is named on the way to its overload.
        if not any(known.startswith(f"{name}.") for known in ops):
            place = "unknown" if first.caller is None else reach.place_of(first.caller.value)
            ops.setdefault(name, NestedOp(name, place, _operators.find(name), called=False))
    return ops.values()


def _dropping(ref: KernelRef, launch: _Launch) -> KernelRef:
    dropped = (f"{option} ({launch.place})" for option in launch.dropped)
    return replace(ref, dropped=tuple(dict.fromkeys((*ref.dropped, *dropped))))


def _body(fn: Any) -> Any:
    """What to read of an operator: the function it was made of."""
    held = fn.__dict__ if type(fn) is types.FunctionType else _kernels.instance_dict(fn)
    if _operators.MARK in held:
        return held.get("__wrapped__") or held.get("fn") or fn
    return _operators.body_of(fn) or fn


def _texts(walk: reach.Walk) -> list[_Text]:
    """Those of the functions that name a kernel or an operator, in the order of the walk."""
    naming = (reached for each in (*walk.kernels.values(), *walk.ops.values()) for reached in each)
    named = {id(reached.caller) for reached in naming}
    return [_Text(reached) for reached in walk.functions if id(reached) in named]


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
        callees = _Text(waiting.pop()).callees()
        functions = (id(fn) for value in callees for fn in _run_by_a_call(value))
        new = [r for fn in functions for r in by_function.get(fn, ()) if id(r) not in called]
        called.update(map(id, new))
        waiting += new
    return called


def _run_by_a_call(value: Any, depth: int = 8) -> Iterator[types.FunctionType]:
    """The functions that run where an object is called."""
    kind = type(value)
    if depth == 0:
        return
    if kind is types.FunctionType:
        yield value
        if not _is_foreign(value):
            return
        # Of a decorator of others, what it decorates.
        inside = [*map(reach.contents, value.__closure__ or ()), value.__dict__.get("__wrapped__")]
    elif id(kind) in reach.PARTS:
        inside = [getattr(value, reach.PARTS[id(kind)][0])]
    else:
        cls = value if issubclass(kind, type) else kind
        held = _kernels.instance_dict(value) if cls is kind else {}
        names = ("__init__", "forward", "backward", "setup_context")
        members = names if cls is value else ("__call__", "forward")
        own = [reach.class_attribute(cls, name) for name in members]
        inside = [m for m in own if id(type(m)) in reach.METHODS]
        inside += [held.get(name) for name in ("__wrapped__", "fn", "func")]
    for part in inside:
        if part is not None and part is not reach.ABSENT:
            yield from _run_by_a_call(part, depth - 1)


def _via(reached: reach.Reached) -> str:
    """`named in helpers.launch (file:line), through host`."""
    if reached.caller is None:
        return "it is what was asked about"
    *above, last = reached.path
    through = f", through {', '.join(fn.__qualname__ for fn in above)}" if above else ""
    return f"named in {last.__qualname__} ({reach.place_of(last)}){through}"


class _Launch(NamedTuple):
    """`kernel[grid](...)`, as its author wrote it, and the options that a graph drops."""

    kernel: Any
    shown: str
    place: str
    dropped: list[str]


class _Text:
    """What the code of one function, with that of the functions in it, launches and calls."""

    def __init__(self, reached: reach.Reached) -> None:
        self.reached, self.fn = reached, reached.value
        self._codes = [_Code(reached, code) for code in reach.with_nested(self.fn.__code__)]

    def launches(self) -> Iterator[_Launch]:
        for code in self._codes:
            for at, end in code.launchers():
                for value in code.values(end):
                    kernel = _kernels.launched_kernel(value)
                    if kernel is not None:
                        dropped = _kernels.dropped_options(kernel, code.keywords(at))
                        yield _Launch(kernel, f"{code.text(end)}[...]", code.place(at), dropped)

    def calls(self) -> Iterator[tuple[str, Any, str]]:
        """Each call of an operator that is not torch's own: its name, it, and where."""
        for code in self._codes:
            for end in code.callees():
                for value in code.values(end):
                    name, op = _called(value)
                    if name and not _operators.is_built_in(name):
                        yield name, op, code.place(end)

    def callees(self) -> Iterator[Any]:
        """What it calls; of `Function.apply`, the class."""
        for code in self._codes:
            for end in code.callees():
                yield from code.values(end)
                if code.text(end).endswith(".apply"):
                    yield from code.values(end - 1)

    def unknown_launches(self) -> list[Unresolved]:
        """Launches of what only a caller or the function itself knows."""
        return [gap for code in self._codes for gap in code.unknown_launches()]


class _Code:
    """One code object: where its expressions begin, and what they stand for."""

    def __init__(self, reached: reach.Reached, code: types.CodeType) -> None:
        self._fn, self._owner, self._code = reached.value, reached.owner, code
        self._shape = _shape(code)
        self._steps = self._shape.steps
        self._known: dict[int, list[Any]] = {}

    def launchers(self) -> Iterator[tuple[int, int]]:
        """Each `value[...]` and `value.run`, with the step at which the value ends."""
        for at in self._shape.launchers:
            is_subscript = bytecode.is_subscript(self._steps[at])
            yield at, (self._shape.start(at - 1) if is_subscript else at) - 1

    def callees(self) -> Iterator[int]:
        """The step at which each called name or attribute ends."""
        for start, _ in self._shape.calls:
            end = start
            while end + 1 < len(self._steps) and self._steps[end + 1].opcode in bytecode.ATTRIBUTES:
                end += 1
            yield end

    def keywords(self, at: int) -> list[str]:
        """The names of the keywords with which what a step gives is called."""
        call = self._shape.call_of(at)
        before = self._steps[max(0, call - 2) : call] if call else []
        named = [self._operand(s) for s in before if s.opcode in bytecode.KEYWORDS]
        return [n for names in named if type(names) is tuple for n in names if type(n) is str]

    def place(self, at: int) -> str:
        return f"{self._code.co_filename}:{self._shape.line(at)}"

    def text(self, end: int) -> str:
        """An expression as its author wrote it, as far as it is names and constants."""
        step = self._steps[end]
        if step.opcode in bytecode.ATTRIBUTES and end:
            return f"{self.text(end - 1)}.{self._operand(step)}"
        if bytecode.is_subscript(step):
            key = self._steps[end - 1]
            shown = repr(self._operand(key)) if key.opcode in bytecode.CONSTANT else "..."
            return f"{self.text(self._shape.start(end - 1) - 1)}[{shown}]"
        is_name = step.opcode in bytecode.NAMES
        return str(self._operand(step)) if is_name else "(...)"

    def unknown_launches(self) -> Iterator[Unresolved]:
        calls = {start for start, _ in self._shape.calls}
        for at, end in self.launchers():
            start = self._shape.start(at)
            root = self._steps[start]
            if self._steps[at].opcode in bytecode.ATTRIBUTES or start not in calls:
                continue
            if root.opcode in bytecode.OUTSIDE or self.values(start):
                continue
            name, why = self._operand(root), "what it holds is known only when the function runs"
            if (
                root.opcode in bytecode.LOCALS
                and name in self._code.co_varnames[: _count(self._code)]
            ):
                why = f"parameter {name!r} is given by the caller"
            yield Unresolved(f"{self.text(end)}[...]", self.place(at), why)

    def values(self, end: int) -> list[Any]:
        """What an expression may stand for that ends with a step, as far as the code shows it."""
        if end < 0:
            return []
        if end not in self._known:
            # A name may be assigned from itself.
            self._known[end] = []
            self._known[end] = [*itertools.islice(self._values(end), _MOST)]
        return self._known[end]

    def _values(self, end: int) -> Iterator[Any]:
        step = self._steps[end]
        if step.opcode in bytecode.ATTRIBUTES:
            for value in self.values(end - 1):
                yield from _attribute(value, self._operand(step))
        elif bytecode.is_subscript(step):
            key = self._steps[end - 1]
            known = self._operand(key) if key.opcode in bytecode.CONSTANT else _UNKNOWN
            for value in self.values(self._shape.start(end - 1) - 1):
                yield from _items(value, known)
        elif step.opcode in bytecode.LOCALS:
            yield from self._local(self._operand(step))
        elif step.opcode in bytecode.OUTSIDE:
            yield from self._outside(self._operand(step))
        elif step.opcode in bytecode.IMPORTS:
            yield from self._imported(end)
        elif step.opcode in bytecode.CALLS:
            yield from self._wrapped(end)

    def _wrapped(self, end: int) -> Iterator[Any]:
        """What `wrap_triton(kernel)` or `torch.compile(function)` is given."""
        inside = [v for i in range(self._shape.start(end), end) for v in self.values(i)]
        functions = [v for v in inside if type(v) is types.FunctionType]
        if any(map(_kernels.is_wrap_triton, inside)):
            yield from filter(_kernels.is_kernel, inside)
        elif any(map(_is_foreign, functions)):
            yield from (fn for fn in functions if not _is_foreign(fn))

    def _imported(self, end: int) -> Iterator[Any]:
        """A module that is loaded, or what a statement imports from it."""
        start = end
        while not bytecode.is_import(self._steps[start]):
            start -= 1
        level = self._operand(self._steps[start - 2])
        name = reach.absolute_name(self._fn, self._operand(self._steps[start]), level or 0)
        module = sys.modules.get(name)
        if start == end:
            yield module
        elif module is not None:
            inner = self._operand(self._steps[end])
            yield from _attribute(module, inner)
            yield sys.modules.get(f"{name}.{inner}")

    def _local(self, name: str) -> Iterator[Any]:
        assigned = self._shape.stores.get(name, ())
        for at in assigned:
            # A value that is also used where it is assigned is copied first.
            copied = self._steps[at - 1].opcode in bytecode.COPIES
            yield from self.values(at - 1 - copied)
        is_first = self._code is self._fn.__code__ and self._code.co_varnames[:1] == (name,)
        if not assigned and is_first and self._owner is not None:
            yield self._owner

    def _outside(self, name: str) -> Iterator[Any]:
        code = self._fn.__code__
        if name in code.co_freevars:
            value = reach.contents((self._fn.__closure__ or ())[code.co_freevars.index(name)])
            if value is not reach.ABSENT:
                yield value
        elif name in code.co_cellvars:
            yield from self._local(name)
        elif name in self._fn.__globals__:
            yield self._fn.__globals__[name]
        elif name in vars(builtins):
            yield vars(builtins)[name]

    def _operand(self, step: bytecode.Step) -> Any:
        return bytecode.operand(self._code, step)


def _is_foreign(fn: types.FunctionType) -> bool:
    return reach.is_foreign_file(fn.__code__.co_filename)


def _count(code: types.CodeType) -> int:
    return code.co_argcount + code.co_kwonlyargcount


class _Shape:
    """What follows from a code object alone."""

    def __init__(self, code: types.CodeType) -> None:
        self.steps = bytecode.steps(code)
        self.launchers: list[int] = []
        # By name, where a local variable is assigned.
        self.stores: dict[str, list[int]] = {}
        # They are asked for at every reading.
        self.start = functools.cache(self._start)
        self.call_of = functools.cache(self._call_of)
        self.line = functools.cache(lambda at: bytecode.line(code, self.steps[at]))
        has_run = "run" in code.co_names
        for at, step in enumerate(self.steps):
            if step.opcode in bytecode.STORES:
                self.stores.setdefault(bytecode.operand(code, step), []).append(at)
            elif bytecode.is_subscript(step) or (
                has_run
                and step.opcode in bytecode.ATTRIBUTES
                and bytecode.operand(code, step) == "run"
            ):
                self.launchers.append(at)

    @functools.cached_property
    def calls(self) -> list[tuple[int, int]]:
        """Each call: where its callee begins, and the call itself."""
        listed = []
        for at, step in enumerate(self.steps):
            if step.opcode in bytecode.CALLS:
                start = self.start(at)
                listed.append((start + (self.steps[start].opcode in bytecode.NULL), at))
        return listed

    def _start(self, at: int) -> int:
        """Where the expression begins that ends with a step: the stack is one value higher."""
        height = 0
        for index in range(at, max(-1, at - _LONGEST), -1):
            height += self.steps[index].effect
            if height >= 1:
                return index
        return 0

    def _call_of(self, at: int) -> int | None:
        """The call of what a step gives: the first that leaves no more than that on the stack."""
        height = 1
        for index in range(at + 1, min(len(self.steps), at + _LONGEST)):
            height += self.steps[index].effect
            if height <= 1 and self.steps[index].opcode in bytecode.CALLS:
                return index
        return None


@reach.cached_by_identity
def _shape(code: types.CodeType) -> _Shape:
    return _Shape(code)


_UNKNOWN = object()


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
    if value is torch and name == "ops":
        return torch.ops
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
    elif stored is not reach.ABSENT and kind is not property and kind is not classmethod:
        yield stored.__func__ if kind is staticmethod else stored


def _items(value: Any, key: Any) -> Iterator[Any]:
    """What a table has under a key; any of its values where the code does not show the key."""
    kind = type(value)
    if kind is not dict and kind is not list and kind is not tuple:
        return
    table = value if kind is dict else dict(enumerate(value))
    if key is _UNKNOWN and len(table) <= _MOST:
        yield from table.values()
    elif key is not _UNKNOWN and key.__hash__ is not None and key in table:
        yield table[key]
