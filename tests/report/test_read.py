"""Which files make up a report, what is said of others, and a report as JSON and back."""

import json
from pathlib import Path

import pytest

from opforge.errors import BadOption
from opforge.report.model import Launched, from_content
from opforge.report.read import read_all


def test_a_build_and_its_files_are_one_report(dist, files):
    (report,) = read_all([str(dist), *files.values()])
    (build,) = report.builds
    assert build.name == "demo_ops"
    assert report.launched == (
        Launched("ops:add_kernel", 120, 7),
        Launched("ops:odd_kernel", by_triton=3, reasons=("it was edited",)),
    )
    assert len(report.tuning) == 12
    assert [(row.op, row.row, row.status) for row in report.checked] == [
        ("demo::add", "eager", "pass"), ("demo::add", "autograd", "fail"),
    ]  # fmt: skip
    assert report.times[0].microseconds == {"op": 20.0, "torch": 25.0}
    assert report.times[0].device == "NVIDIA H200"
    # Nothing launched is not the same as nobody looked.
    (alone,) = read_all([str(dist)])
    assert (alone.launched, alone.checked) == (None, None)


def test_counts_of_several_processes_add_up(files, tmp_path):
    other = tmp_path / "other.json"
    content = json.loads(Path(files["served"]).read_text())
    content["handed_over"][0]["reason"] = "it is not in kernels"
    other.write_text(json.dumps(content))
    (report,) = read_all([files["served"], str(other)])
    assert report.launched == (
        Launched("ops:add_kernel", 240, 14),
        Launched("ops:odd_kernel", by_triton=6, reasons=("it was edited", "it is not in kernels")),
    )


def test_a_file_belongs_to_the_build_before_it_or_to_the_first(dist, spilling, files):
    old, new = read_all([files["times"], str(dist), files["check"], str(spilling), files["served"]])
    assert (bool(old.times), bool(old.checked), old.launched) == (True, True, None)
    assert (new.times, new.checked, bool(new.launched)) == ((), None, True)


def test_the_checks_of_many_operators_are_read_with_those_that_could_not_be_checked(tmp_path):
    row = {"name": "eager", "status": "skipped", "reason": "no GPU"}
    content = {
        "ok": False,
        "reports": [{"op": "a::b", "rows": [row]}],
        "problems": [{"name": "a::c", "message": "no inputs"}],
    }
    (tmp_path / "check.json").write_text(json.dumps(content))
    (report,) = read_all([str(tmp_path / "check.json")])
    assert [(row.op, row.row, row.status, row.reason) for row in report.checked] == [
        ("a::b", "eager", "skipped", "no GPU"), ("a::c", "check", "fail", "no inputs"),
    ]  # fmt: skip


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(BadOption, match=r"there is no .*nowhere"):
        read_all([str(tmp_path / "nowhere")])


TUNED = {"kernel": "k", "source": "s", "arch": "sm_90", "dtypes": [], "key": ["n"],
         "rows": [{"at": [1], "config": {}, "us": "x"}]}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "datum"),
    [
        ("spills", "Expecting value"),
        (b"\xff\xfe\x00", "codec can't decode"),
        ({"name": "x", "age": 3}, "an object with age, name"),
        # Not a folder, which has no content either.
        (None, "found: None"),
        ({"format": 2, "kernels": [], "processes": 1}, "opforge build"),
        ({"format": 1, "kernels": [TUNED]}, "rows[0].us is 'x'"),
        ({"rows": [{"op": "silu"}]}, "rows[0].microseconds is missing"),
        ({"outcome": "passed", "op": "a::b", "rows": []}, "has no row of a check"),
        ({"opforge_report": 9}, "has format 9, but this opforge reads 1"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(content, datum, tmp_path):
    file = tmp_path / "wrong.json"
    text = content if isinstance(content, (str, bytes)) else json.dumps(content)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadOption) as raised:
        read_all([str(file)])
    assert str(file) in str(raised.value)
    assert datum in str(raised.value)


def test_three_builds_cannot_be_compared(dist):
    with pytest.raises(BadOption, match="3 builds cannot be compared"):
        read_all([str(dist)] * 3)


def test_a_report_comes_back_from_json_as_it_was(dist, files):
    (report,) = read_all([str(dist), *files.values()])
    content = json.loads(json.dumps(report.to_content()))
    assert content["opforge"]
    assert from_content(content, "it") == report
    content["builds"][0]["variants"][1]["images"][0]["spills"] = "x"
    with pytest.raises(BadOption, match=r"builds\[0\].variants\[1\].images\[0\].spills is 'x'"):
        from_content(content, "old.json")
