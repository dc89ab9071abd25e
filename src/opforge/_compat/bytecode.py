"""Finds instructions in Python's bytecode.

`dis` takes longer than parsing the function; `bytes.find` takes next to no time.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterator

EXTENDED = dis.opmap["EXTENDED_ARG"]
_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
# Since Python 3.11 the lowest bit of LOAD_GLOBAL's argument says whether a null is pushed too.
_GLOBAL_SHIFT = 1 if sys.version_info >= (3, 11) else 0


def globals_read(code: types.CodeType) -> list[str]:
    """Global names that a function reads, without the functions nested in it."""
    read = arguments(code, _LOAD_GLOBAL)
    return list(dict.fromkeys(code.co_names[argument >> _GLOBAL_SHIFT] for _, argument in read))


def arguments(code: types.CodeType, opcode: int) -> Iterator[tuple[int, int]]:
    """(offset, argument) of every instruction with an opcode."""
    raw = code.co_code  # inline caches are zeros, and no opcode asked for is 0
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
