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

_LOAD_GLOBAL, _LOAD_ATTR, _LOAD_NAME, _IMPORT_NAME, _EXTENDED_ARG = (
    dis.opmap[name]
    for name in ("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_NAME", "IMPORT_NAME", "EXTENDED_ARG")
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
    read = [step for step in steps(code) if step[0] == _LOAD_GLOBAL or step[0] == _LOAD_NAME]
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
    """What instructions leave on the stack, by kind.

    `local` and `outside` have a name, `constant` a value, `attribute` an expression and a name,
    `item` an expression and the key's, `call` a callee and arguments, `import` a module and its
    leading dots, `from` what a name is imported from and the name.
    """

    kind: str
    of: Any = None
    detail: Any = None
    offset: int = 0
    keywords: tuple[str, ...] = ()


# Like `Expr`, which takes twice as long, of all five fields.
_expr = cast("Callable[[tuple[Any, ...]], Expr]", functools.partial(tuple.__new__, Expr))


class Expressions:
    """What code subscripts, runs, calls and assigns, in the order of its text.

    One pass over the stack, which sees both sides of a jump as if one followed the other.
    """

    def __init__(self, code: types.CodeType) -> None:
        # Each `value[...]` and `value.run`.
        self.launchers: list[Expr] = []
        self.calls: list[Expr] = []
        # By name, what is assigned to a local variable.
        self.stores: dict[str, list[Expr]] = {}
        # They are asked for at every reading.
        self.line = functools.cache(lambda offset: line(code, offset))
        self._stack: list[Expr] = []
        before: Any = ()
        keywords: Any = ()
        for step in steps(code):
            value = operand(code, step)
            if step[0] in _LOCALS:
                self._stack.append(_expr(("local", value, None, step[2], ())))
            else:
                self._step(step, value, keywords or before)
            before = keywords
            keywords = value if type(value) is tuple and step[0] in _KEYWORDS else ()

    def keywords(self, launcher: Expr) -> list[str]:
        """The names of the keywords with which what an expression gives is called."""
        calls = [call for call in self.calls if call.of is launcher]
        if not calls:
            stores = self.stores.items()
            names = [name for name, values in stores if any(v is launcher for v in values)]
            of_locals = [call for call in self.calls if call.of.kind == "local"]
            calls = [call for call in of_locals if call.of.of in names]
        return [name for call in calls for name in call.keywords if type(name) is str]

    def _step(  # noqa: C901, PLR0912  # a table of instructions
        self, step: Step, value: Any, keywords: Any
    ) -> None:
        opcode, argument, offset = step
        stack = self._stack
        if opcode in _CONSTANT:
            stack.append(_expr(("constant", value, None, 0, ())))
            return
        if opcode in _STORES:
            self.stores.setdefault(value, []).append(self._pop())
            return
        effect = _effect(opcode, argument)
        if opcode in ATTRIBUTES:
            stack.append(_expr(("attribute", self._pop(), value, offset, ())))
            stack += [_NULL] * effect
            if value == "run":
                self.launchers.append(stack[-1 - effect])
        elif opcode == _LOAD_SUPER_ATTR:
            for _ in range(3):
                self._pop()
            stack += Expr("attribute", _OTHER, value, offset), *[_NULL] * (effect + 2)
        elif opcode in OUTSIDE:
            stack += *[_NULL] * (effect - 1), _expr(("outside", value, None, offset, ()))
        elif opcode in _CALLS:
            popped = [self._pop() for _ in range(1 - effect)][::-1]
            callee, *arguments = [expr for expr in popped if expr is not _NULL] or [_OTHER]
            stack.append(Expr("call", callee, arguments, offset, keywords))
            self.calls.append(stack[-1])
        elif opcode in _SUBSCRIPT or (argument == _SUBSCRIPTS and opcode in _BINARY):
            key = self._pop()
            stack.append(Expr("item", self._pop(), key, offset))
            self.launchers.append(stack[-1])
        elif opcode == _IMPORT_NAME:
            # Without names to import, the package that the module lies in.
            name = value if self._pop().of else value.partition(".")[0]
            stack.append(Expr("import", name, self._pop().of or 0))
        elif opcode in _IMPORT_FROM:
            stack.append(Expr("from", stack[-1] if stack else _OTHER, value))
        elif opcode in _COPIES:
            stack.append(stack[-max(1, argument)] if len(stack) >= argument else _OTHER)
        elif opcode in _SWAPS and len(stack) >= max(2, argument):
            at = -max(2, argument)
            stack[-1], stack[at] = stack[at], stack[-1]
        elif opcode in _PUSHING and effect > 0:
            stack += [_NULL if opcode in _PUSH_NULL else _OTHER] * effect
        elif opcode in _TAKING:
            # What one side of a conditional expression leaves is not below that of the other.
            for _ in range(1 if opcode in _JUMP else -effect):
                self._pop()
        elif opcode not in _KEYWORDS:
            for _ in range(1 - min(effect, 0)):
                self._pop()
            stack += [_OTHER] * (1 + max(effect, 0))

    def _pop(self) -> Expr:
        return self._stack.pop() if self._stack else _OTHER


expressions = cached_by_identity(Expressions)


@functools.cache
def _effect(opcode: int, argument: int) -> int:
    """How much higher the stack is behind an instruction that does not jump."""
    name = dis.opname[opcode]
    if name == "CALL":  # Python 3.11 counts the arguments for the instruction before.
        return -1 - argument
    has_argument = opcode >= dis.HAVE_ARGUMENT
    effect = dis.stack_effect(opcode, argument if has_argument else None, jump=False)
    return effect + (name == "END_FOR")  # One that FOR_ITER pushed when it jumped.


def opcodes(*names: str) -> frozenset[int]:
    """The opcodes of those instructions that this Python has."""
    return frozenset(dis.opmap[name] for name in names if name in dis.opmap)


def _opcodes_from(*starts: str) -> frozenset[int]:
    return opcodes(*(name for name in dis.opmap if name.startswith(starts)))


_OTHER, _NULL = Expr("other"), Expr("null")
# What pushes a name's value: an attribute's, a local one, one from outside of the function.
ATTRIBUTES = opcodes("LOAD_ATTR", "LOAD_METHOD")
_LOCALS = opcodes("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK")
OUTSIDE = opcodes("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")
NAMES = _LOCALS | OUTSIDE
_STORES = opcodes("STORE_FAST", "STORE_DEREF")
_IMPORT_FROM = opcodes("IMPORT_FROM")
_CONSTANT = opcodes("LOAD_CONST", "LOAD_SMALL_INT")
_COPIES = opcodes("COPY", "DUP_TOP")
_SWAPS = opcodes("SWAP", "ROT_TWO")
# The tuple of a call's keywords.
_KEYWORDS = opcodes("KW_NAMES", "LOAD_CONST")
_PUSH_NULL = opcodes("PUSH_NULL")
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
_IDLE = opcodes("CACHE", "NOP", "RESUME", "MAKE_CELL", "COPY_FREE_VARS", "PRECALL")
_WITH_NAME = frozenset(dis.hasname)
_WITH_CONSTANT = frozenset(dis.hasconst)
_WITH_VARIABLE = frozenset((*dis.haslocal, *dis.hasfree))
