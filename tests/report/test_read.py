"""Which files make up a report, and what is said of others."""

import json
import shutil
from pathlib import Path

import pytest

from opforge.errors import BadOption, NotALibrary
from opforge.report.model import Launched
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


def test_a_file_belongs_to_the_build_before_it(dist, spilling, files):
    old, new = read_all([str(dist), files["check"], str(spilling), files["served"]])
    assert old.checked
    assert old.launched is None
    assert new.checked is None
    assert new.launched


def test_files_before_the_first_build_belong_to_it(dist, files):
    (report,) = read_all([files["check"], str(dist)])
    assert report.builds
    assert report.checked


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


@pytest.mark.parametrize(
    "content", [{"outcome": "passed", "op": "a::b", "rows": []}, {"ok": True, "reports": []}]
)
def test_a_check_of_nothing_is_refused(content, tmp_path):
    assert refused(content, tmp_path) == (
        "/given.json has no row of a check\n"
        "  fix: write it with `opforge check --json`, of operators"
    )


def refused(content, tmp_path, error=BadOption):
    file = tmp_path / "given.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(error) as raised:
        read_all([str(file)])
    return str(raised.value).replace(str(tmp_path), "")


KINDS = "give JSON of `opforge serve --counts`, `opforge.served().to_json()`, `opforge tune`"


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(BadOption, match=r"there is no .*nowhere\n  fix: give a folder"):
        read_all([str(tmp_path / "nowhere")])


def test_a_folder_that_is_not_a_build_says_what_it_has(tmp_path):
    (tmp_path / "main.py").touch()
    with pytest.raises(NotALibrary) as raised:
        read_all([str(tmp_path)])
    assert str(raised.value) == (
        f"{tmp_path} is neither a library nor a folder of served kernels\n"
        "  found: no share/*/manifest.json and no manifest.json, but main.py\n"
        "  fix: give the folder that `opforge build -o` wrote"
    )


@pytest.mark.parametrize("binary", ["libdemo_ops.so", "libdemo_ops_torch.so"])
def test_a_binary_stands_for_its_library(dist, tmp_path, binary):
    copy = shutil.copytree(dist, tmp_path / "dist")
    shutil.copytree(copy / "share/demo_ops", copy / "share/another")
    (copy / "lib").mkdir(exist_ok=True)
    (copy / "lib" / binary).write_bytes(b"\x7fELF")
    (report,) = read_all([str(copy / "lib" / binary)])
    assert [build.name for build in report.builds] == ["demo_ops"]
    assert report.source == str(copy / "lib" / binary)


def test_a_binary_that_is_not_of_a_build_is_refused(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libz.so").touch()
    with pytest.raises(NotALibrary) as raised:
        read_all([str(tmp_path / "lib/libz.so")])
    assert str(raised.value) == (
        f"{tmp_path / 'lib/libz.so'} is not part of a build\n"
        f"  found: no {tmp_path.resolve() / 'share/z/manifest.json'}\n"
        "  fix: give the folder that `opforge build -o` wrote"
    )


def test_a_wheel_is_refused(tmp_path):
    wheel = tmp_path / "fresh-1.0-py3-none-any.whl"
    wheel.write_bytes(b"PK\x03\x04\xff")
    with pytest.raises(BadOption) as raised:
        read_all([str(wheel)])
    assert str(raised.value) == (
        f"{wheel} is a wheel, and its files are packed\n"
        "  fix: give the folder that it was made from, or the package where it is installed"
    )


def test_text_that_is_not_json_is_refused(tmp_path):
    said = refused("spills", tmp_path)
    assert said.startswith("/given.json is not JSON: Expecting value")
    assert KINDS in said


def test_bytes_that_are_not_text_are_refused(tmp_path):
    (tmp_path / "given.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadOption, match="is not text"):
        read_all([str(tmp_path / "given.json")])


def test_json_of_something_else_says_what_it_has(tmp_path):
    said = refused({"name": "x", "age": 3}, tmp_path)
    assert said.startswith("/given.json has nothing that a report shows\n  found: an object with")
    assert "age, name" in said
    assert KINDS in said
    assert "found: [1, 2]" in refused([1, 2], tmp_path)
    # Not a folder, which has no content either.
    assert "found: None" in refused(None, tmp_path)


def test_a_recording_is_to_be_built_first(tmp_path):
    said = refused({"format": 2, "kernels": [], "processes": 1}, tmp_path)
    assert "is a recording, of which nothing is compiled yet" in said
    assert "fix: build it with `opforge build /given.json -o kernels`" in said


def test_a_tuning_table_with_wrong_fields_names_them(tmp_path):
    block = {"kernel": "k", "source": "s", "arch": "sm_90", "dtypes": [], "key": ["n"]}
    table = {"format": 1, "kernels": [{**block, "rows": [{"at": [1], "config": {}, "us": "x"}]}]}
    said = refused(table, tmp_path, BadOption)
    assert "kernels[0] cannot be read\n  found: rows[0].us is 'x', expected float" in said
    assert "opforge tune" in said


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"rows": [{"op": "silu"}]}, "rows[0].microseconds is missing"),
        ({"rows": [{"op": "silu", "microseconds": {"op": -1}}]},
         "rows[0].microseconds.op is -1.0, expected 0 to 1000000000000000"),
        ({"rows": [{"microseconds": {}}]}, "rows[0].op is missing"),
        ({"rows": [{"op": "silu", "microseconds": {"op": True}}]},
         "rows[0].microseconds.op is True, expected float"),
        ({"rows": []}, "rows is empty"),
        ({"rows": [{"op": "silu", "microseconds": {}}]}, "rows[0].microseconds is empty"),
    ],
)  # fmt: skip
def test_times_with_wrong_fields_name_them(content, found, tmp_path):
    said = refused(content, tmp_path)
    assert f"has no measured times\n  found: {found}" in said
    assert '"microseconds": {"op": 21.4}' in said


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"status": "pass"}, "rows[0].name is missing"),
        ({"name": "eager", "status": "good"},
         "rows[0].status is 'good', expected one of 'fail', 'pass', 'skipped'"),
        ({"name": "eager", "status": "pass", "notes": [3]}, "rows[0].notes[0] is 3, expected str"),
    ],
)  # fmt: skip
def test_a_check_with_wrong_fields_names_them(row, found, tmp_path):
    said = refused({"outcome": "passed", "op": "a::b", "rows": [row]}, tmp_path)
    assert f"found: {found}\n  fix: write it with `opforge check --json`" in said


def test_three_builds_cannot_be_compared(dist):
    with pytest.raises(
        BadOption, match=r"3 builds cannot be compared(.|\n)*the old one and the new"
    ):
        read_all([str(dist)] * 3)
