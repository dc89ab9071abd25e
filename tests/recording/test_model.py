"""Recordings: joined, written and read back; files are not trusted."""

import json
from dataclasses import replace

import pytest

from opforge.errors import NotServable
from opforge.recording.model import (
    Missed,
    RecordedChoice,
    RecordedKernel,
    RecordedVariant,
    Recording,
    parse,
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
CHOICE = RecordedChoice((("n", 4096),), ("float32",), (("BLOCK", 64), ("num_warps", 4)), "sm_90")
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


def test_a_kernel_that_was_edited_is_another_kernel():
    edited = Recording((replace(KERNEL, source="1e"),))
    assert len(WHOLE.joined(edited).kernels) == 2


def test_a_kernel_under_other_settings_is_another_kernel(tmp_path):
    exact = Recording((replace(KERNEL, settings=(("TRITON_F32_DEFAULT", "ieee"),)),))
    joined = WHOLE.joined(exact)
    joined.save(tmp_path / "launches.json")
    assert read(tmp_path / "launches.json").kernels == (KERNEL, *exact.kernels)


def forged(**changes):
    content = json.loads(WHOLE.to_json())
    return json.dumps({**content, **changes})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "x.json is not JSON"),
        ("[" * 100_000, "x.json is not JSON"),
        ("[]", "x.json is not a recording: it has no 'kernels'"),
        (forged(format=1), "found: format 1, but this opforge reads 3"),
        (forged(kernels=[{"module": 3}]), "kernels[0]"),
        (forged(kernels=[7]), "kernels[0] is 7, expected an object with module"),
        (forged(processes=-1), "processes is -1, expected 0 to"),
        (forged(triton=[1]), "triton[0] is 1, expected str"),
    ],
)
def test_what_is_not_a_recording_is_refused(text, said):
    with pytest.raises(NotServable) as caught:
        parse(text, "x.json")
    assert said in str(caught.value)
    assert "fix: record again with `opforge record" in str(caught.value)


def test_a_file_that_is_missing_or_not_text_is_refused(tmp_path):
    with pytest.raises(NotServable, match=r"gone\.json does not exist"):
        read(tmp_path / "gone.json")
    (tmp_path / "a.json").write_bytes(b"\xff\xfe")
    with pytest.raises(NotServable, match=r"a\.json is not text"):
        read(tmp_path / "a.json")
