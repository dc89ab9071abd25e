"""Reads Python's functions without torch, which compile workers lack, and quicker than `dis`.

Inline caches of bytecode are zeros, and so is the opcode of one.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

ABSENT = object()
# Their code is what their versions make it, and leads to none of the user's.
FOREIGN = frozenset({"builtins", "numpy", "opforge", "sympy", "torch", "triton"})

EXTENDED = dis.opmap["EXTENDED_ARG"]
_LOAD_GLOBAL, _LOAD_ATTR = dis.opmap["LOAD_GLOBAL"], dis.opmap["LOAD_ATTR"]
_LOAD_NAME, _IMPORT_NAME = dis.opmap["LOAD_NAME"], dis.opmap["IMPORT_NAME"]
# Lowest bits of an argument that say whether something is pushed, too.
_SHIFTS = {
    _LOAD_GLOBAL: 1 if sys.version_info >= (3, 11) else 0,
    _LOAD_ATTR: 1 if sys.version_info >= (3, 12) else 0,
}


@functools.cache
def is_foreign_name(module: str) -> bool:
    """Whether a module of that name is foreign."""
    top = module.partition(".")[0]
    return top in FOREIGN or (top in sys.stdlib_module_names and top != "__main__")


def cached_by_identity(compute: F) -> F:
    """Compute once per first argument, which is kept, so that no other takes its id.

    Comparing code objects is slow, and two that are equal may lie in different files.
    """
    kept: dict[int, tuple[Any, Any]] = {}

    def cached(key: Any, *rest: Any) -> Any:
        known = kept.get(id(key))
        if known is None:
            known = kept[id(key)] = key, compute(key, *rest)
        return known[1]

    return cast("F", cached)


def contents(cell: types.CellType) -> Any:
    """What a closure's cell holds; ABSENT if nothing yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return ABSENT


def with_nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """Code and that of the functions and classes in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from with_nested(constant)


def globals_read(code: types.CodeType) -> list[str]:
    """Global names that a function reads, without the functions nested in it."""
    return _names(code, _LOAD_GLOBAL)


def names_read(code: types.CodeType) -> list[str]:
    """Names that the body of a class reads: its own, or global ones."""
    return _names(code, _LOAD_NAME)


def imports(code: types.CodeType) -> Iterator[tuple[str, int]]:
    """The modules that code imports, each with its leading dots."""
    if _IMPORT_NAME in code.co_code[::2]:
        listed = steps(code)
        for at, step in enumerate(listed):
            if step.opcode == _IMPORT_NAME:
                level = operand(code, listed[at - 2])
                yield operand(code, step), level if isinstance(level, int) else 0


def chains(code: types.CodeType, roots: frozenset[int]) -> Iterator[tuple[str, ...]]:
    """Names that code reads, each with the attributes that it takes: `("torch", "ops", "ns")`."""
    chain: list[str] = []
    for step in steps(code):
        if chain and step.opcode in ATTRIBUTES:
            chain.append(operand(code, step))
        else:
            if chain:
                yield tuple(chain)
            chain = [operand(code, step)] if step.opcode in roots else []


def _names(code: types.CodeType, opcode: int) -> list[str]:
    shift = _SHIFTS.get(opcode, 0)
    read = (code.co_names[argument >> shift] for _, argument in arguments(code, opcode))
    return list(dict.fromkeys(read))


def arguments(code: types.CodeType, opcode: int) -> Iterator[tuple[int, int]]:
    """(offset, argument) of every instruction with an opcode."""
    raw = code.co_code
    opcodes = raw[::2]
    at = opcodes.find(opcode)
    while at >= 0:
        argument = raw[2 * at + 1]
        before, shift = at - 1, 8
        while before >= 0 and opcodes[before] == EXTENDED:
            argument |= raw[2 * before + 1] << shift
            before, shift = before - 1, shift + 8
        yield 2 * at, argument
        at = opcodes.find(opcode, at + 1)


class Step(NamedTuple):
    """One instruction."""

    opcode: int
    argument: int
    offset: int

    @property
    def effect(self) -> int:
        """How much higher the stack is behind it, where it does not jump."""
        return _effect(self.opcode, self.argument)


@functools.cache
def _effect(opcode: int, argument: int) -> int:
    has_argument = opcode >= dis.HAVE_ARGUMENT
    return dis.stack_effect(opcode, argument if has_argument else None, jump=False)


def steps(code: types.CodeType) -> list[Step]:
    """The instructions of code but those that do nothing."""
    raw, extended = code.co_code, 0
    listed: list[Step] = []
    for at, opcode in enumerate(raw[::2]):
        if opcode in _IDLE:
            continue
        argument = raw[2 * at + 1] | extended
        extended = 0
        if opcode == EXTENDED:
            extended = argument << 8
        elif opcode in _PAIRS:
            first, second = _PAIRS[opcode]
            listed += Step(first, argument >> 4, 2 * at), Step(second, argument & 15, 2 * at)
        else:
            listed.append(Step(opcode, argument, 2 * at))
    return listed


def operand(code: types.CodeType, step: Step) -> Any:
    """The name or the constant that an instruction is about; None if there is none."""
    opcode, argument = step.opcode, step.argument
    if opcode in _WITH_NAME:
        return code.co_names[argument >> _SHIFTS.get(opcode, 0)]
    if opcode in _WITH_CONSTANT:
        return code.co_consts[argument]
    if opcode in _WITH_VARIABLE:
        if sys.version_info >= (3, 11):
            return code._varname_from_oparg(argument)  # type: ignore[attr-defined]
        is_local = opcode in dis.haslocal
        return (code.co_varnames if is_local else code.co_cellvars + code.co_freevars)[argument]
    return argument if dis.opname[opcode] == "LOAD_SMALL_INT" else None


def text(code: types.CodeType) -> str:
    """Code without the lines that it stands on, the same in every process."""
    constants = [
        text(value) if isinstance(value, types.CodeType)
        else repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)
        for value in code.co_consts
    ]  # fmt: skip
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_argcount)
    return f"{code.co_name} {code.co_code.hex()} {constants} {names}"


def line(code: types.CodeType, step: Step) -> int:
    lines = (n for start, end, n in code.co_lines() if start <= step.offset < end and n)
    return next(lines, code.co_firstlineno)


def opcodes(*names: str) -> frozenset[int]:
    """The opcodes of those instructions that this Python has."""
    return frozenset(dis.opmap[name] for name in names if name in dis.opmap)


# What pushes a name's value: an attribute's, a local one, one from outside of the function.
ATTRIBUTES = opcodes("LOAD_ATTR", "LOAD_METHOD")
LOCALS = opcodes("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK")
OUTSIDE = opcodes("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")
NAMES = LOCALS | OUTSIDE
STORES = opcodes("STORE_FAST", "STORE_DEREF")
IMPORTS = opcodes("IMPORT_NAME", "IMPORT_FROM")
CONSTANT = opcodes("LOAD_CONST", "LOAD_SMALL_INT")
COPIES = opcodes("COPY", "DUP_TOP")
# The tuple of a call's keywords.
KEYWORDS = opcodes("KW_NAMES", "LOAD_CONST")
NULL = opcodes("PUSH_NULL")
CALLS = opcodes(*(n for n in dis.opmap if n.startswith("CALL") and "INTRINSIC" not in n))
_SUBSCRIPT = opcodes("BINARY_SUBSCR")
_BINARY = opcodes("BINARY_OP")


def is_import(step: Step) -> bool:
    """Whether it imports a module; IMPORT_FROM takes something of one."""
    return step.opcode == _IMPORT_NAME


def is_subscript(step: Step) -> bool:
    # Since Python 3.14 it is a binary operator, the 26th.
    return step.opcode in _SUBSCRIPT or (step.argument == 26 and step.opcode in _BINARY)


_OF_VARIABLES = ("LOAD_FAST", "LOAD_FAST_BORROW", "STORE_FAST")
# Since Python 3.13 one instruction may be two, each about a variable.
_PAIRS = {
    dis.opmap[f"{first}_{second}"]: (dis.opmap[first], dis.opmap[second])
    for first in _OF_VARIABLES
    for second in _OF_VARIABLES
    if f"{first}_{second}" in dis.opmap
}
_IDLE = opcodes("CACHE", "NOP", "RESUME", "MAKE_CELL", "COPY_FREE_VARS")
_WITH_NAME = frozenset(dis.hasname)
_WITH_CONSTANT = frozenset(dis.hasconst)
_WITH_VARIABLE = frozenset((*dis.haslocal, *dis.hasfree))
