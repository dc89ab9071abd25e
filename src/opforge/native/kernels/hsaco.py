"""Reads what an AMD kernel's object says of itself, and compares it with what launches pass.

An hsaco is an ELF file. Its note of type NT_AMDGPU_METADATA is a msgpack map, which LLVM writes
from the compiled code: each argument's place and size, registers, the size of a block. So a wrong
ABI is found at the build, without a GPU.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...arch import Arch

_NOTE_SECTION = 7
_METADATA = (b"AMDGPU\0", 32)
_DESCRIPTOR = re.compile(r"tensordesc<(\w+)\[([^\]]*)\].*>")
# Deeper than any note, so that a forged one cannot exhaust the stack.
_DEEPEST = 16
# The first bytes of msgpack's values: maps, lists and texts that are short, and by how many bytes
# of a length follow, those that are long.
_FIXED_MAP, _FIXED_LIST, _FIXED_TEXT = 0x80, 0x90, 0xA0
_SIZED = {
    _FIXED_MAP: {0xDE: 2, 0xDF: 4},
    _FIXED_LIST: {0xDC: 2, 0xDD: 4},
    _FIXED_TEXT: {0xD9: 1, 0xDA: 2, 0xDB: 4},
}
_BOOLS = {0xC2: False, 0xC3: True}
_NUMBERS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}


class BadObject(Exception):
    """The object is damaged, or not what launches of it would pass; the message says where."""


def usage(hsaco: bytes, function: str) -> tuple[int, int]:
    """Vector registers per thread, and how many of them are spilled.

    Zeros for a file that cannot be read; the numbers are only for display.
    """
    try:
        return _usage(_kernel(hsaco, function))
    except BadObject:
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
        notes = list(_notes(hsaco))
    except (struct.error, ValueError) as error:
        raise BadObject(f"the object cannot be read: {error}") from None
    if len(notes) != 1:
        raise BadObject(f"the object has {len(notes)} notes with metadata, expected one")
    metadata = Reader(notes[0]).whole()
    kernels = _field(metadata, "amdhsa.kernels", list)
    for kernel in kernels:
        if _field(kernel, ".name", str) == function:
            found: dict[str, Any] = kernel
            return found
    raise BadObject(f"the object has no kernel {function}")


def _notes(hsaco: bytes) -> Iterator[bytes]:
    if hsaco[:4] != b"\x7fELF":
        raise ValueError("it is not an ELF file")
    (table,) = struct.unpack_from("<Q", hsaco, 0x28)
    size, count = struct.unpack_from("<HH", hsaco, 0x3A)
    for i in range(count):
        _, kind, _, _, at, length = struct.unpack_from("<IIQQQQ", hsaco, table + i * size)
        end = at + length
        while kind == _NOTE_SECTION and at < end:
            name_size, content_size, note = struct.unpack_from("<III", hsaco, at)
            name_at = at + 12
            content_at = name_at + (name_size + 3) // 4 * 4
            at = content_at + (content_size + 3) // 4 * 4
            content = hsaco[content_at : content_at + content_size]
            if len(content) != content_size:
                raise ValueError("a note ends behind the file")
            if (hsaco[name_at : name_at + name_size], note) == _METADATA:
                yield content


def _field(content: Any, key: str, kind: type) -> Any:
    found = content.get(key) if isinstance(content, dict) else None
    if type(found) is not kind:
        raise BadObject(f"the object's metadata has no {key}")
    return found


class Reader:
    """Reads the kinds of msgpack that notes have: maps, lists, text, numbers, yes and no."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def whole(self) -> Any:
        """All of the content, as one value; raises `BadObject`."""
        found = self._value(0)
        if self._at != len(self._content):
            raise BadObject("the object's metadata goes on behind its end")
        return found

    def _value(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise BadObject("the object's metadata is nested too deeply")
        kind = self._number(1)
        if kind < _FIXED_MAP:
            return kind
        if kind in _BOOLS:
            return _BOOLS[kind]
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        # Of the others, the number of bytes or items stands in the kind itself, or behind it.
        read, size, few = self._kind(kind)
        count = self._number(size) if size else few
        return read(count, depth + 1)

    def _kind(self, kind: int) -> tuple[Callable[[int, int], Any], int, int]:
        for first, read, few in (
            (_FIXED_TEXT, self._text, 0x1F),
            (_FIXED_LIST, self._list, 0x0F),
            (_FIXED_MAP, self._map, 0x0F),
        ):
            if first <= kind <= first + few:
                return read, 0, kind & few
            if kind in _SIZED[first]:
                return read, _SIZED[first][kind], 0
        raise BadObject(f"the object's metadata has a value of kind {kind:#x}")

    def _list(self, count: int, depth: int) -> list[Any]:
        return [self._value(depth) for _ in range(count)]

    def _map(self, count: int, depth: int) -> dict[str, Any]:
        found = {}
        for _ in range(count):
            key = self._value(_DEEPEST)
            if not isinstance(key, str):
                raise BadObject("the object's metadata has a key that is not text")
            found[key] = self._value(depth)
        return found

    def _number(self, size: int) -> int:
        return int.from_bytes(self._bytes(size), "big")

    def _text(self, size: int, _depth: int) -> str:
        return self._bytes(size).decode(errors="replace")

    def _bytes(self, size: int) -> bytes:
        found = self._content[self._at : self._at + size]
        if len(found) != size:
            raise BadObject("the object's metadata is cut off")
        self._at += size
        return found
