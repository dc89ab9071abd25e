"""The report: records, text, JSON."""

import dataclasses
import json

import pytest

from opforge.check.report import CheckReport, Row

ROWS = (
    Row("eager", "pass", seconds=0.25),
    Row("fake", "fail", "output: the fake says dtype a, the op gives b", "correct fake="),
    Row("vmap", "skipped", "needs a GPU", "find one"),
    Row("package", "skipped", "needs a GPU", "find one", notes=("by the way",)),
)
REPORT = CheckReport("lib::op", "ops.py:3", ("x: float32 (2,) on cpu",), "CPU, torch 2", ROWS)

TEXT = """\
lib::op  (ops.py:3)
  on      CPU, torch 2
  input   x: float32 (2,) on cpu

  eager    pass
  fake     fail     output: the fake says dtype a, the op gives b
                    fix: correct fake=
  vmap     skipped  needs a GPU
                    fix: find one
  package  skipped  needs a GPU
                    note: by the way

1 passed, 1 failed, 2 skipped in 0.2 s"""


def test_the_text_is_a_table_that_says_a_fix_of_skipped_rows_once():
    assert str(REPORT) == TEXT


def test_a_row_is_found_by_its_name():
    assert REPORT["fake"].status == "fail"
    with pytest.raises(KeyError, match="no row 'fakes'; the rows are eager, fake, vmap, package"):
        REPORT["fakes"]


def test_one_failure_makes_the_report_not_ok():
    assert not REPORT.ok
    assert [r.name for r in REPORT.failures] == ["fake"]
    assert dataclasses.replace(REPORT, rows=ROWS[2:]).ok


def test_a_check_without_a_run_is_neither_passed_nor_failed():
    traced = dataclasses.replace(REPORT, rows=(Row("eager", "skipped"), Row("compile", "pass")))
    assert (traced.ok, traced.outcome) == (True, "incomplete")
    text = "1 passed, 0 failed, 1 skipped in 0.0 s; incomplete: neither eager nor numerics ran"
    assert traced.summary() == text
    assert json.loads(traced.as_json())["outcome"] == "incomplete"
    assert REPORT.outcome == "failed"
    for decisive in ("eager", "numerics"):
        assert dataclasses.replace(REPORT, rows=(Row(decisive, "pass"),)).outcome == "passed"


def test_records_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        REPORT.op = "other"
    with pytest.raises(dataclasses.FrozenInstanceError):
        ROWS[0].status = "fail"


def test_json_has_name_status_and_reason_of_every_row():
    found = json.loads(REPORT.as_json())
    assert found["op"] == "lib::op"
    assert found["ok"] is False
    assert [(r["name"], r["status"]) for r in found["rows"]] == [(r.name, r.status) for r in ROWS]
    assert found["rows"][1]["reason"] == ROWS[1].reason
    assert found["rows"][1]["fix"] == "correct fake="
    assert found["rows"][3]["notes"] == ["by the way"]


def test_the_failures_alone_are_the_message_of_a_test():
    text = REPORT.render_failures()
    assert "the fake says dtype a" in text
    assert "vmap" not in text
