"""Reads what a compiled object says of itself, and compares an AMD one with what launches pass.

Both vendors' objects are ELF files. A cubin's section `.nv.info` is a list of records: a format, an
attribute and a length, then a symbol's index and a number. An hsaco's note of type
NT_AMDGPU_METADATA is a msgpack map, which LLVM writes from the compiled code: each argument's place
and size, registers, the size of a block. So a wrong ABI is found at the build, without a GPU.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ...arch import Arch

# Of a cubin's records.
_SIZED = 0x04
_REGISTERS = 0x2F
_FRAME_SIZE = 0x11
_SYMBOL_SIZE = 24
# Of an hsaco's notes.
_NOTE_SECTION = 7
_METADATA = (b"AMDGPU\0", 32)
_DESCRIPTOR = re.compile(r"tensordesc<(\w+)\[([^\]]*)\].*>")
# The first bytes of msgpack's values: maps, lists and texts that are short, and by how many bytes
# of a length follow, those that are long.
_MAP, _LIST, _TEXT = 0x80, 0x90, 0xA0
_COUNTED = (
    (_MAP, 0x0F, {0xDE: 2, 0xDF: 4}),
    (_LIST, 0x0F, {0xDC: 2, 0xDD: 4}),
    (_TEXT, 0x1F, {0xD9: 1, 0xDA: 2, 0xDB: 4}),
)
_BOOLS = {0xC2: False, 0xC3: True}
_NUMBERS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_UNREADABLE = (struct.error, ValueError, LookupError, TypeError, OverflowError, RecursionError)


class BadObject(Exception):
    """The object is damaged, or not what launches of it would pass; the message says where."""


class _Section(NamedTuple):
    name: int
    kind: int
    # Not a copy: many sections may claim the whole file.
    content: memoryview


def usage(content: bytes, function: str, arch: Arch) -> tuple[int, int]:
    """Registers per thread, and what Triton calls spills.

    Those are 4-byte words of local memory in a cubin, and spilled registers in an hsaco. Zeros for
    an object that cannot be read; the numbers are only for display.
    """
    try:
        return _usage(_kernel(content, function)) if arch.is_amd else _cubin(content, function)
    except (BadObject, *_UNREADABLE):
        return 0, 0


def check(
    hsaco: bytes,
    arch: Arch,
    function: str,
    parameters: Sequence[tuple[str, str]],
    *,
    threads: int,
    shared: int,
    flags: int,
) -> tuple[int, int]:
    """Registers and spills, if the object fits a launch; raises `BadObject`.

    `parameters` has the names and types that a launch passes, in order, and `flags` how many flags
    it passes with a tensor descriptor. Two pointers to scratch memory come behind them.
    """
    kernel = _kernel(hsaco, function)
    expected = [
        ("", ".symbol", f"{function}.kd"),
        ("its wavefronts", ".wavefront_size", arch.warp_size),
        ("its largest block", ".max_flat_workgroup_size", threads),
    ]
    for what, key, value in expected:
        found = _field(kernel, key, type(value))
        if found != value:
            raise BadObject(f"{what or 'the object'} has {key} {found!r}, but Triton says {value}")
    _check_arguments(kernel, _passed(parameters, flags))
    taken = shared + _field(kernel, ".group_segment_fixed_size", int)
    if taken > arch.most_shared:
        raise BadObject(
            f"it needs {taken} bytes of shared memory, and {arch} has {arch.most_shared}: use "
            "smaller blocks or fewer stages"
        )
    return _usage(kernel)


def _passed(parameters: Sequence[tuple[str, str]], flags: int) -> list[tuple[str, int]]:
    """The names and sizes of what a launch passes, before the scratch memory."""
    found: list[tuple[str, int]] = []
    for name, kind in parameters:
        if descriptor := _DESCRIPTOR.fullmatch(kind):
            # Without tensor maps: address, sizes, strides and flags, and as 32-bit sizes once more.
            rank = descriptor[2].count(",") + 1
            sizes = [8, *[8] * 2 * rank, *[1] * flags, *[4] * rank, *[8] * rank]
            found += [(name, size) for size in sizes]
        else:
            found.append((name, _size(kind)))
    return found


def _size(kind: str) -> int:
    bits = 64 if kind.startswith("*") else int(re.sub(r"\D", "", kind) or 0)
    if kind != "i1" and bits not in {8, 16, 32, 64}:
        raise BadObject(f"a launch cannot pass an argument of type {kind}")
    return max(bits // 8, 1)


def _check_arguments(kernel: dict[str, Any], passed: list[tuple[str, int]]) -> None:
    given = _field(kernel, ".args", list)
    # Those that the driver adds by itself.
    taken = [a for a in given if not str(_field(a, ".value_kind", str)).startswith("hidden_")]
    scratch = [("the global scratch memory", 8), ("the profile scratch memory", 8)]
    # The driver reads as many as the object says, so a pointer behind the last does not matter.
    if not len(passed) <= len(taken) <= len(passed) + len(scratch):
        raise BadObject(
            f"the object takes {len(taken)} arguments, but a launch passes {len(passed)} and two "
            "pointers to scratch memory"
        )
    end = 0
    for argument, (name, size) in zip(taken, [*passed, *scratch], strict=False):
        offset, found = _field(argument, ".offset", int), _field(argument, ".size", int)
        aligned = (end + size - 1) // size * size
        if (offset, found) != (aligned, size):
            raise BadObject(
                f"the object takes {name} as {found} bytes at {offset}, but a launch passes "
                f"{size} bytes at {aligned}"
            )
        end = offset + size
    reserved = _field(kernel, ".kernarg_segment_size", int)
    if reserved < end:
        raise BadObject(f"the object reserves {reserved} bytes for arguments that take {end}")


def _usage(kernel: dict[str, Any]) -> tuple[int, int]:
    return _field(kernel, ".vgpr_count", int), _field(kernel, ".vgpr_spill_count", int)


def _kernel(hsaco: bytes, function: str) -> dict[str, Any]:
    """What the object says of a kernel."""
    try:
        (metadata,) = (unpacked(note)[0] for note in _notes(hsaco))
    except _UNREADABLE as error:
        raise BadObject(f"the object's metadata cannot be read: {error}") from None
    for kernel in _field(metadata, "amdhsa.kernels", list):
        if _field(kernel, ".name", str) == function:
            found: dict[str, Any] = kernel
            return found
    raise BadObject(f"the object has no kernel {function}")


def _field(content: Any, key: str, kind: type) -> Any:
    found = content.get(key) if isinstance(content, dict) else None
    if type(found) is not kind:
        raise BadObject(f"the object's metadata has no {key}")
    return found


def _notes(hsaco: bytes) -> Iterator[bytes]:
    for section in _sections(hsaco):
        at, notes = 0, bytes(section.content) if section.kind == _NOTE_SECTION else b""
        while at < len(notes):
            name_size, content_size, note = struct.unpack_from("<III", notes, at)
            name_at = at + 12
            content_at = name_at + (name_size + 3) // 4 * 4
            at = content_at + (content_size + 3) // 4 * 4
            if (notes[name_at : name_at + name_size], note) == _METADATA:
                yield notes[content_at : content_at + content_size]


def unpacked(content: bytes, at: int = 0) -> tuple[Any, int]:
    """A value in msgpack, and where the next one is: maps, lists, text, numbers, yes and no."""
    kind, at = content[at], at + 1
    if kind < _MAP:
        return kind, at
    if kind in _BOOLS:
        return _BOOLS[kind], at
    if kind in _NUMBERS:
        return _number(content, at, _NUMBERS[kind])
    for first, few, longer in _COUNTED:
        if first <= kind <= first + few:
            count = kind - first
        elif kind in longer:
            count, at = _number(content, at, longer[kind])
        else:
            continue
        if first == _TEXT:
            return content[at : at + count].decode(), at + count
        items = []
        for _ in range(2 * count if first == _MAP else count):
            item, at = unpacked(content, at)
            items.append(item)
        pairs = zip(items[::2], items[1::2], strict=True)
        return (dict(pairs) if first == _MAP else items), at
    raise ValueError(f"it has a value of kind {kind:#x}")


def _number(content: bytes, at: int, size: int) -> tuple[int, int]:
    return int.from_bytes(content[at : at + size], "big"), at + size


def _cubin(cubin: bytes, function: str) -> tuple[int, int]:
    sections = _sections(cubin)
    (names_at,) = struct.unpack_from("<H", cubin, 0x3E)
    titles = bytes(sections[names_at].content)
    named = {_name(titles, section.name): section.content for section in sections}
    info, symbols, names = (bytes(named[name]) for name in (".nv.info", ".symtab", ".strtab"))
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
    return found.get(_REGISTERS, 0), found.get(_FRAME_SIZE, 0) // 4


def _name(names: bytes, at: int) -> str:
    return names[at : names.index(b"\0", at)].decode()


def _sections(content: bytes) -> list[_Section]:
    if content[:4] != b"\x7fELF":
        raise ValueError("it is not an ELF file")
    (table,) = struct.unpack_from("<Q", content, 0x28)
    size, count = struct.unpack_from("<HH", content, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", content, table + i * size) for i in range(count)]
    view = memoryview(content)
    return [_Section(h[0], h[1], view[h[4] : h[4] + h[5]]) for h in headers]
