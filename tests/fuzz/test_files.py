"""Forged cached kernels and tuning tables."""

import functools
import json
import tempfile
from pathlib import Path

from opforge.arch import HOPPER
from opforge.errors import BadOption
from opforge.native.ir.program import Image
from opforge.native.kernels.image_cache import Cache, CorruptEntry, encode
from opforge.tuning import table as tables
from opforge.tuning.rule import nearest
from support.fuzzing import attack, damaged, forged

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


def measured():
    kernel = tables.TunedKernel("k", "5e1f", "sm_90", ("float16", "float32"), ("m", "n"))
    made = tables.TuningTable()
    for at in ((1, 2), (16, 4), (3, "x"), (True, None), (1.5, 2)):
        config = (("BLOCK", 16), ("FLAG", None), ("MODE", "x"))
        made.add(kernel, tables.TuningRow(at, config, 1.5, "NVIDIA H200"))
    return made


@functools.cache
def folder():
    return Path(tempfile.mkdtemp(prefix="opforge-fuzz-"))


@attack(forged(json.loads(measured().to_json())), examples=100)
def test_a_forged_table_is_refused_or_says_the_same_when_it_is_written(text):
    place = folder() / "table.json"
    place.write_bytes(text)
    try:
        found = tables.load(place)
    except BadOption as error:
        assert place.name in str(error)
        assert "opforge tune" in str(error)
        assert len(str(error)) < 1500
        return
    assert tables.parse(found.to_json(), "again").rows.keys() == found.rows.keys()
    for kernel, rows in found.rows.items():
        listed = list(rows.values())
        assert not listed or nearest(listed, listed[0].at) in listed
        assert nearest(listed, [7] * len(kernel.key)) in [*listed, None]
