"""Damaged cached kernels."""

import functools
import tempfile
from pathlib import Path

from opforge.arch import HOPPER
from opforge.native.ir.program import Image
from opforge.native.kernels.image_cache import Cache, CorruptEntry, encode
from support.fuzzing import attack, damaged

IMAGE = Image(HOPPER, b"\x7fELF\n\0cubin", "kernel", 4, ptx=".version 8\n")
KEY = "ab" * 32


@functools.cache
def cache():
    made = Cache(Path(tempfile.mkdtemp(prefix="opforge-fuzz-")) / "cache")
    made.write(KEY, IMAGE)
    assert made.read(KEY) == IMAGE
    return made


@attack(damaged(encode(KEY, IMAGE)), examples=50)
def test_a_damaged_entry_is_never_taken_for_another_image(content):
    cache().path(KEY).write_bytes(content)
    try:
        assert cache().read(KEY) == IMAGE
    except CorruptEntry as error:
        assert KEY in str(error)
