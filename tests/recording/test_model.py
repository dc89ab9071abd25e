"""Recordings: joined, written and read back; files are not trusted."""

import json
from dataclasses import replace

import pytest

from opforge.errors import NotServable
from opforge.native.ir.kernels import Choice
from opforge.recording.model import (
    Missed,
    RecordedKernel,
    RecordedVariant,
    Recording,
    read,
)

VARIANT = RecordedVariant(
    types=(("x_ptr", "*fp32"), ("n", "i32")),
    constants=(("BLOCK", 64), ("ACT", None)),
    options=(("num_warps", 8),),
    arch="sm_90",
    ones=("n",),
    divisible=("x_ptr",),
    launches=3,
    first="serve.py:8",
    sizes=({"n": 1},),
)
CHOICE = Choice((("n", 4096),), ("float32",), (("BLOCK", 64), ("num_warps", 4)), "sm_90")
KERNEL = RecordedKernel("pack.ops", "scale", "0f", "ops.py:3", (VARIANT,), (CHOICE,))
WHOLE = Recording((KERNEL,), (Missed("k", "k.py:1", "it is odd", "a.py:2"),), ("3.7.1",), 1)


def test_it_is_read_back_as_it_was_written(tmp_path):
    WHOLE.save(tmp_path / "launches.json")
    found = read(tmp_path / "launches.json")
    assert found == WHOLE
    assert found.to_json() == WHOLE.to_json()
    assert str(found) == "1 kernel, 1 variant, 3 launches of 1 process"


def test_joining_adds_counts_of_the_same_and_keeps_the_rest():
    other = replace(VARIANT, constants=(("BLOCK", 128), ("ACT", None)))
    again = replace(VARIANT, launches=4, first="b.py:1", sizes=({"n": 1}, {"n": 2}))
    tuned = CHOICE._replace(key=(("n", 1),))
    second = Recording((replace(KERNEL, variants=(again, other), choices=(CHOICE, tuned)),))
    joined = WHOLE.joined(replace(second, processes=2, triton=("3.6.0",)))
    (kernel,) = joined.kernels
    assert [v.launches for v in kernel.variants] == [7, 3]
    assert kernel.variants[0].sizes == ({"n": 1}, {"n": 2})
    assert kernel.variants[0].first == "serve.py:8"
    assert kernel.choices == (CHOICE, tuned)
    assert (joined.processes, joined.triton) == (3, ("3.7.1", "3.6.0"))
    assert joined.launches == 10


@pytest.mark.parametrize("change", [{"source": "1e"}, {"settings": (("TRITON_X", "ieee"),)}])
def test_a_kernel_of_other_source_or_settings_is_another_kernel(change, tmp_path):
    other = Recording((replace(KERNEL, **change),))
    WHOLE.joined(other).save(tmp_path / "launches.json")
    assert read(tmp_path / "launches.json").kernels == (KERNEL, *other.kernels)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "Expecting property name"),
        (b"[" * 100_000, "recursion"),
        (b"\xff\xfe", "can't decode"),
        (b"[]", "format is None, but this opforge reads 3"),
        ({"format": 1}, "format is 1, but this opforge reads 3"),
        ({"kernels": [{"module": 3}]}, "kernels[0]"),
        ({"processes": "1"}, "processes is '1', expected int"),
    ],
)
def test_what_is_not_a_recording_is_refused(content, said, tmp_path):
    if isinstance(content, dict):
        content = json.dumps(json.loads(WHOLE.to_json()) | content).encode()
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(NotServable) as caught:
        read(tmp_path / "x.json")
    assert said in caught.value.found
    assert "record again with `opforge record" in caught.value.fix
