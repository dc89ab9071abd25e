"""Reads a cubin's register and stack use, which `ptxas -v` prints too.

A cubin is an ELF file. Its section `.nv.info` is a list of records: a format, an attribute and a
length, then the payload. The records read here are a symbol's index and a number.
"""

from __future__ import annotations

import struct

_SIZED = 0x04
_REGISTERS = 0x2F
_FRAME_SIZE = 0x11
_SYMBOL_SIZE = 24


def usage(cubin: bytes, function: str) -> tuple[int, int]:
    """Registers per thread, and 4-byte words of local memory, which Triton calls spills.

    Zeros for a file without such records; the numbers are only for display.
    """
    try:
        found = _records(_sections(cubin), function)
    except (struct.error, IndexError, KeyError, ValueError):
        return 0, 0
    return found.get(_REGISTERS, 0), found.get(_FRAME_SIZE, 0) // 4


def _sections(cubin: bytes) -> dict[str, bytes]:
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    contents = [cubin[offset : offset + length] for *_, offset, length in headers]
    names = contents[names_at]
    return {
        _name(names, header[0]): content for header, content in zip(headers, contents, strict=True)
    }


def _records(sections: dict[str, bytes], function: str) -> dict[int, int]:
    info, symbols, names = (sections[name] for name in (".nv.info", ".symtab", ".strtab"))
    found: dict[int, int] = {}
    at = 0
    while at < len(info):
        kind, attribute, length = struct.unpack_from("<BBH", info, at)
        at += 4
        if kind != _SIZED:
            continue
        if attribute in {_REGISTERS, _FRAME_SIZE}:
            symbol, number = struct.unpack_from("<II", info, at)
            (name_at,) = struct.unpack_from("<I", symbols, symbol * _SYMBOL_SIZE)
            if _name(names, name_at) == function:
                found[attribute] = number
        at += length
    return found


def _name(names: bytes, at: int) -> str:
    return names[at : names.index(b"\0", at)].decode()
