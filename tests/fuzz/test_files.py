"""Forged build records, journals, cached kernels and tuning tables."""

import functools
import json
import tempfile
from pathlib import Path

from opforge.arch import HOPPER
from opforge.errors import BadTuning
from opforge.native.artifacts import build_record
from opforge.native.artifacts.fileset import clear_up, write_output
from opforge.native.artifacts.output_folder import JOURNAL
from opforge.native.ir.program import Image
from opforge.native.kernels.image_cache import Cache, CorruptEntry, _digest, _pack, encode
from opforge.tuning import table as tables
from opforge.tuning.rule import nearest
from support.fuzzing import attack, damaged, forged

FILES = {"lib/libx.so": b"library", "include/x.h": b"header"}
ARGUMENTS = {"targets": ["ops.py"], "jobs": 1}


@functools.cache
def workshop():
    """A folder with a file beside an output folder, neither of which a build may touch."""
    folder = Path(tempfile.mkdtemp(prefix="opforge-fuzz-"))
    (folder / "ops.py").write_text("source")
    return folder


def build():
    """An output folder with a build in it, and the stamp for another."""
    out = workshop() / "dist"
    stamp = build_record.make(out, ARGUMENTS, {}, [workshop() / "ops.py"])
    write_output(out, FILES, stamp=stamp, name="x")
    return out, stamp


def is_whole(out):
    """Whether everything is there that must be, and nothing else."""
    found = {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    beside = [path.name for path in workshop().iterdir()]
    return FILES.items() <= found.items() and sorted(beside) == ["dist", "ops.py"]


RECORD = json.loads(build()[1].to_json()) | {"written": dict.fromkeys(FILES, "0" * 64)}


@attack(forged(RECORD), examples=50)
def test_a_forged_record_makes_the_next_build_do_its_work(text):
    out, stamp = build()
    place = out / build_record.stamp_path("x")
    place.write_bytes(text)
    why = build_record.difference(place, ARGUMENTS)
    assert why is None or isinstance(why, str)
    assert build_record.find_unchanged(out, {"other": 1}) is None
    write_output(out, FILES, stamp=stamp, name="x")
    assert build_record.difference(place, ARGUMENTS) is None
    assert is_whole(out)


DECIDED = {"changed": ["lib/libx.so", "include/x.h", "share/x/new"], "gone": ["share/x/old"]}


@attack(forged(DECIDED), examples=40)
def test_a_forged_journal_is_cleared_up_within_the_folder(text):
    out, _ = build()
    stage = out / ".opforge-forged"
    for path, content in FILES.items():
        (stage / "new" / path).parent.mkdir(parents=True, exist_ok=True)
        (stage / "new" / path).write_bytes(content)
    (stage / JOURNAL).write_bytes(text)
    clear_up(out)
    assert not stage.exists()
    build()
    assert is_whole(out)


IMAGE = Image(HOPPER, b"\x7fELF\n\0cubin", "kernel", 4, ptx=".version 8\n")
HEAD, _, REST = _pack(IMAGE).partition(b"\n")
KEY = "ab" * 32


@functools.cache
def cache():
    made = Cache(Path(tempfile.mkdtemp(prefix="opforge-fuzz-")) / "cache")
    made.write(KEY, IMAGE)
    assert made.read(KEY) == IMAGE
    return made


@attack(forged(json.loads(HEAD)), damaged(REST), examples=120)
def test_a_forged_image_is_refused_or_within_what_cuda_can_have(head, rest):
    body = head + b"\n" + rest
    cache().path(KEY).write_bytes(_digest(KEY, body) + b"\n" + body)
    try:
        found = cache().read(KEY)
    except CorruptEntry as error:
        assert KEY in str(error)
        assert len(str(error)) < 1500
        return
    assert isinstance(found, Image)
    assert 1 <= found.num_warps <= 64
    assert found.cubin + found.ptx.encode() == body.partition(b"\n")[2]


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


@attack(forged(json.loads(measured().to_json())), examples=100)
def test_a_forged_table_is_refused_or_says_the_same_when_it_is_written(text):
    place = workshop().with_suffix(".json")
    place.write_bytes(text)
    try:
        found = tables.load(place)
    except BadTuning as error:
        assert place.name in str(error)
        assert "opforge tune" in str(error)
        assert len(str(error)) < 1500
        return
    assert tables.parse(found.to_json(), "again").rows.keys() == found.rows.keys()
    for kernel, rows in found.rows.items():
        listed = list(rows.values())
        assert not listed or nearest(listed, listed[0].at) in listed
        assert nearest(listed, [7] * len(kernel.key)) in [*listed, None]
