"""Names that a code object reads from outside or stores as attributes, found in its bytecode."""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass

from ..._compat.bytecode import EXTENDED, arguments, globals_read
from .identity import cached_by_identity

_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
_STORE_ATTR = dis.opmap["STORE_ATTR"]
_LOAD_DEREF = dis.opmap["LOAD_DEREF"]
_LOAD_CONST = dis.opmap["LOAD_CONST"]
_IMPORT_NAME = dis.opmap["IMPORT_NAME"]


@cached_by_identity
def stored_attributes(code: types.CodeType) -> frozenset[str]:
    """Each `name` for which a function contains `something.name = ...`."""
    return frozenset(code.co_names[a] for _, a in arguments(code, _STORE_ATTR))


@dataclass(frozen=True)
class Mentions:
    """What a function and those nested in it mention.

    An import is a name and a level: the number of leading dots, or -1 where it is not known.
    """

    names: frozenset[str]
    globals_read: tuple[str, ...]
    imports: tuple[tuple[str, int], ...]
    has_classes: bool


@cached_by_identity
def mentions(code: types.CodeType) -> Mentions:
    """What a function mentions, worked out once per process."""
    names: set[str] = set()
    read: dict[str, None] = {}
    imports: list[tuple[str, int]] = []
    has_classes = False
    for inner in _with_nested(code):
        names.update(inner.co_names)
        for offset, argument in arguments(inner, _IMPORT_NAME):
            imports.append((inner.co_names[argument], _import_level(inner, offset)))
        read.update(dict.fromkeys(globals_read(inner)))
        # A class's body is the one kind of nested code without fast locals.
        if inner is not code and not inner.co_flags & inspect.CO_OPTIMIZED:
            has_classes = True
    return Mentions(frozenset(names), tuple(read), tuple(imports), has_classes)


def line_reading(code: types.CodeType, name: str) -> int:
    """The first line that reads a global or closure name; asked only of names not bound yet."""
    for inner in _with_nested(code):
        for step in dis.get_instructions(inner):
            if step.argval == name and step.opcode in {_LOAD_GLOBAL, _LOAD_DEREF}:
                return _line(inner, step.offset)
    return code.co_firstlineno


def _with_nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _with_nested(const)


def _import_level(code: types.CodeType, offset: int) -> int:
    """The level of an import: the constant that is loaded before the names to import."""
    raw = code.co_code
    at = offset - 4
    plain = at >= 0 and raw[at] == _LOAD_CONST and (at < 2 or raw[at - 2] != EXTENDED)
    level = code.co_consts[raw[at + 1]] if plain and raw[at + 2] == _LOAD_CONST else -1
    return level if isinstance(level, int) else -1


def _line(code: types.CodeType, offset: int) -> int:
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno
