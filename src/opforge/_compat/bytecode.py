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

_LOAD_GLOBAL, _LOAD_ATTR, _IMPORT_NAME, _EXTENDED_ARG = (
    dis.opmap[name] for name in ("LOAD_GLOBAL", "LOAD_ATTR", "IMPORT_NAME", "EXTENDED_ARG")
)
# `super().name` since Python 3.12.
_LOAD_SUPER_ATTR = dis.opmap.get("LOAD_SUPER_ATTR", -1)
# Lowest bits of an argument that say what is pushed, too, and how `super` was called.
_SHIFTS = {
    _LOAD_GLOBAL: 1 if sys.version_info >= (3, 11) else 0,
    _LOAD_ATTR: 1 if sys.version_info >= (3, 12) else 0,
    _LOAD_SUPER_ATTR: 2,
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


# An instruction: its opcode, its argument and its offset.
Step = tuple[int, int, int]


@cached_by_identity
def steps(code: types.CodeType) -> list[Step]:
    """The instructions of code but those that do nothing."""
    listed: list[Step] = []
    raw, extended = code.co_code, 0
    for offset, opcode, argument in zip(range(0, len(raw), 2), raw[::2], raw[1::2], strict=True):
        if not opcode:
            continue
        if opcode == _EXTENDED_ARG:
            extended = (extended | argument) << 8
        elif opcode not in _IDLE:
            if opcode in _PAIRS:
                first, second = _PAIRS[opcode]
                listed += (first, argument >> 4, offset), (second, argument & 15, offset)
            else:
                listed.append((opcode, argument | extended, offset))
            extended = 0
    return listed


def names_read(code: types.CodeType) -> dict[str, bool]:
    """Global names that code reads, without what is nested in it.

    The body of a class, for which they are false, may bind them itself.
    """
    read = [step for step in steps(code) if step[0] in _GLOBALS]
    return {operand(code, step): step[0] == _LOAD_GLOBAL for step in read}


def imports(code: types.CodeType) -> Iterator[tuple[str, int]]:
    """The modules that code imports, each with its leading dots."""
    has_one = _IMPORT_NAME in code.co_code[::2]
    for at, step in enumerate(steps(code) if has_one else ()):
        if step[0] == _IMPORT_NAME:
            level = operand(code, steps(code)[at - 2])
            yield operand(code, step), level if isinstance(level, int) else 0


def chains(code: types.CodeType, roots: frozenset[int]) -> Iterator[tuple[str, ...]]:
    """Names that code reads, each with the attributes that it takes: `("torch", "ops", "ns")`."""
    chain: list[str] = []
    for step in steps(code):
        if chain and step[0] in ATTRIBUTES:
            chain.append(operand(code, step))
        else:
            if chain:
                yield tuple(chain)
            chain = [operand(code, step)] if step[0] in roots else []


def operand(code: types.CodeType, step: Step) -> Any:
    """The name or the constant that an instruction is about; None if there is none."""
    opcode, argument, _ = step
    if opcode in _WITH_VARIABLE:
        if sys.version_info >= (3, 11):
            return code._varname_from_oparg(argument)  # type: ignore[attr-defined]
        is_local = opcode in dis.haslocal
        return (code.co_varnames if is_local else code.co_cellvars + code.co_freevars)[argument]
    if opcode in _WITH_NAME:
        return code.co_names[argument >> _SHIFTS.get(opcode, 0)]
    if opcode in _WITH_CONSTANT:
        return code.co_consts[argument]
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


def line(code: types.CodeType, offset: int) -> int:
    lines = (n for start, end, n in code.co_lines() if start <= offset < end and n)
    return next(lines, code.co_firstlineno)


class Expr(NamedTuple):
    """What an instruction leaves on the stack, by kind.

    `local` and `outside` have a name, `constant` a value, `attribute` an expression and a name,
    `item` an expression and the key's, `call` a callee and the instructions that it takes,
    `import` a module and its leading dots, `from` what a name is imported from and the name.
    """

    kind: str
    of: Any = None
    detail: Any = None
    offset: int = 0


_OTHER = Expr("other")


class Expressions:
    """What code subscripts, runs, calls and assigns, each by the number of its instruction.

    One pass over the stack, which sees both sides of a jump as if one followed the other, tells
    what each instruction takes. `expr` makes an expression of those that somebody asks for.
    """

    def __init__(self, code: types.CodeType) -> None:
        self._code, self._steps = code, steps(code)
        # By kind, and what each of them takes, in the order of the text.
        self._taken: dict[str, dict[int, list[int]]] = {kind: {} for kind in _KINDS}
        self._exprs: dict[int, Expr] = {-1: _OTHER}
        # They are asked for at every reading.
        self.line = functools.cache(lambda offset: line(code, offset))
        # Each value by the instruction that left it.
        stack: list[int] = []
        for at, (opcode, argument, _) in enumerate(self._steps):
            takes, leaves, kind = _effect(opcode, argument)
            if kind:
                missing = [-1] * (takes - len(stack))
                self._taken[kind][at] = missing + stack[len(stack) - takes + len(missing) :]
            if takes:
                del stack[-takes:]
            if leaves == 1:
                stack.append(at)
            elif leaves:
                stack += [*[-1] * (leaves - 1), at]
            elif opcode in _PUSH_NULL:
                stack.append(-1)
            elif opcode in _IMPORT_FROM:
                stack += [*self._taken["from"][at], at]
            elif opcode in _COPIES:
                stack.append(stack[-max(1, argument)] if len(stack) >= argument else -1)
            elif opcode in _SWAPS and len(stack) >= max(2, argument):
                other = -max(2, argument)
                stack[-1], stack[other] = stack[other], stack[-1]

    @functools.cached_property
    def launchers(self) -> list[int]:
        """Each `value[...]` and `value.run`."""
        runs = [at for at in self._taken["attribute"] if self._operand(at) == "run"]
        return sorted([*self._taken["item"], *runs])

    @functools.cached_property
    def calls(self) -> dict[int, int]:
        """Each call and what it calls."""
        calls = self._taken["call"].items()
        return {at: next((each for each in taken if each >= 0), -1) for at, taken in calls}

    @functools.cached_property
    def stores(self) -> dict[str, list[int]]:
        """By name, what is assigned to a local variable."""
        stores: dict[str, list[int]] = {}
        for at, taken in self._taken["store"].items():
            stores.setdefault(self._operand(at), []).append(*taken)
        return stores

    def keywords(self, launcher: int) -> list[str]:
        """The names of the keywords with which what an expression gives is called."""
        calls = [call for call, callee in self.calls.items() if callee == launcher]
        if not calls:
            names = {name for name, values in self.stores.items() if launcher in values}
            callees = [(call, self.expr(callee)) for call, callee in self.calls.items()]
            calls = [call for call, expr in callees if expr.kind == "local" and expr.of in names]
        return [name for call in calls for name in self._keywords(call)]

    def _keywords(self, call: int) -> tuple[str, ...]:
        # The instruction before has their names.
        are_before = self._steps[call - 1][0] in _KEYWORDS or self._steps[call][0] in _CALLS_KW
        return self._operand(call - 1) if are_before else ()

    def expr(self, at: int) -> Expr:
        """What an instruction leaves."""
        if at not in self._exprs:
            self._exprs[at] = self._expr(at)
        return self._exprs[at]

    def _expr(self, at: int) -> Expr:
        opcode, argument, offset = self._steps[at]
        _, _, kind = _effect(opcode, argument)
        name = self._operand(at)
        if not kind:
            return Expr(_PUSHED.get(opcode, "other"), name, None, offset)
        first, *more = self._taken[kind][at]
        if kind == "call":
            return Expr(kind, self.expr(self.calls[at]), [first, *more], offset)
        if kind == "item":
            return Expr(kind, self.expr(first), self.expr(*more), offset)
        if kind == "import":
            # Without names to import, the package that the module lies in.
            name = name if self.expr(*more).of else name.partition(".")[0]
            return Expr(kind, name, self.expr(first).of or 0)
        return Expr(kind, self.expr(first), name, offset)

    def _operand(self, at: int) -> Any:
        return operand(self._code, self._steps[at])


expressions = cached_by_identity(Expressions)


@functools.cache
def _effect(opcode: int, argument: int) -> tuple[int, int, str]:  # noqa: C901  # a table
    """How many values an instruction takes and leaves if it does not jump; and its kind."""
    name = dis.opname[opcode]
    has_argument = opcode >= dis.HAVE_ARGUMENT
    effect = dis.stack_effect(opcode, argument if has_argument else None, jump=False)
    if name == "CALL":  # Python 3.11 counts the arguments for the instruction before.
        effect = -1 - argument
    if name == "END_FOR":  # FOR_ITER pushed one when it jumped.
        effect += 1
    takes = -min(effect, 0)
    if opcode in _ASIDE:
        return 0, 0, ""
    if opcode in ATTRIBUTES:
        return 1, 1 + effect, "attribute"
    if opcode in _CALLS:
        return takes + 1, 1, "call"
    if opcode in _SUBSCRIPT or (argument == _SUBSCRIPTS and opcode in _BINARY):
        return 2, 1, "item"
    if opcode in _STORES:
        return 1, 0, "store"
    if opcode == _IMPORT_NAME:
        return 2, 1, "import"
    if opcode in _IMPORT_FROM:
        return 1, 0, "from"
    if opcode == _LOAD_SUPER_ATTR:
        return 3, effect + 3, ""
    if opcode in _PUSHING and effect > 0:
        return 0, effect, ""
    if opcode in _TAKING:
        # What one side of a conditional expression leaves is not below that of the other.
        return 1 if opcode in _JUMP else takes, 0, ""
    return takes + 1, 1 + max(effect, 0), ""


def opcodes(*names: str) -> frozenset[int]:
    """The opcodes of those instructions that this Python has."""
    return frozenset(dis.opmap[name] for name in names if name in dis.opmap)


def _opcodes_from(*starts: str) -> frozenset[int]:
    return opcodes(*(name for name in dis.opmap if name.startswith(starts)))


_KINDS = ("attribute", "call", "from", "import", "item", "store")
# What pushes a name's value: an attribute's, a local one, one from outside of the function.
ATTRIBUTES = opcodes("LOAD_ATTR", "LOAD_METHOD")
_LOCALS = opcodes("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK")
OUTSIDE = opcodes(
    "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF",
    "LOAD_FROM_DICT_OR_GLOBALS",
)  # fmt: skip
NAMES = _LOCALS | OUTSIDE
_GLOBALS = opcodes("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_STORES = opcodes("STORE_FAST", "STORE_DEREF")
_IMPORT_FROM = opcodes("IMPORT_FROM")
_CONSTANT = opcodes("LOAD_CONST", "LOAD_SMALL_INT")
_PUSHED = {
    **dict.fromkeys(_LOCALS, "local"),
    **dict.fromkeys(OUTSIDE, "outside"),
    **dict.fromkeys(_CONSTANT, "constant"),
}
_COPIES = opcodes("COPY", "DUP_TOP")
_SWAPS = opcodes("SWAP", "ROT_TWO")
# What has the names of a call's keywords, and calls that take them from the stack.
_KEYWORDS, _CALLS_KW = opcodes("KW_NAMES"), opcodes("CALL_KW", "CALL_FUNCTION_KW")
_PUSH_NULL = opcodes("PUSH_NULL")
_ASIDE = _COPIES | _SWAPS | _KEYWORDS | _PUSH_NULL
_CALLS = _opcodes_from("CALL") - _opcodes_from("CALL_INTRINSIC")
_JUMP = opcodes("JUMP_FORWARD")
_PUSHING = _opcodes_from("LOAD_", "PUSH_", "BUILD_")
_TAKING = _JUMP | _opcodes_from(
    "POP_", "STORE_", "DELETE_", "END_", "RETURN_", "RAISE_", "JUMP_IF_",
    "LIST_APPEND", "LIST_EXTEND", "SET_ADD", "SET_UPDATE", "MAP_ADD", "DICT_",
)  # fmt: skip
_SUBSCRIPT = opcodes("BINARY_SUBSCR")
# Since Python 3.14 it is a binary operator, the 26th.
_BINARY, _SUBSCRIPTS = opcodes("BINARY_OP"), 26


_OF_VARIABLES = ("LOAD_FAST", "LOAD_FAST_BORROW", "STORE_FAST")
# Since Python 3.13 one instruction may be two, each about a variable.
_PAIRS = {
    dis.opmap[f"{first}_{second}"]: (dis.opmap[first], dis.opmap[second])
    for first in _OF_VARIABLES
    for second in _OF_VARIABLES
    if f"{first}_{second}" in dis.opmap
}
_IDLE = opcodes("CACHE", "NOP", "RESUME", "MAKE_CELL", "COPY_FREE_VARS", "NOT_TAKEN", "PRECALL")
_WITH_NAME = frozenset(dis.hasname)
_WITH_CONSTANT = frozenset(dis.hasconst)
_WITH_VARIABLE = frozenset((*dis.haslocal, *dis.hasfree))
