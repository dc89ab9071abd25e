"""The report of an op and the summary of many: text, JSON, JUnit's XML, and a page."""

import dataclasses
import json
from xml.etree import ElementTree as ET

import pytest

from opforge.check.report import CheckReport, Problem, Row, Summary
from opforge.errors import BadOption

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

  eager    pass     0.2 s
  fake     fail            output: the fake says dtype a, the op gives b
                           fix: correct fake=
  vmap     skipped         needs a GPU
                           fix: find one
  package  skipped         needs a GPU
                           note: by the way

1 passed, 1 failed, 2 skipped in 0.2 s"""


def test_the_text_is_a_table_that_says_a_fix_of_skipped_rows_once():
    assert str(REPORT) == TEXT


def test_a_row_is_found_by_its_name():
    assert REPORT["fake"].status == "fail"
    with pytest.raises(KeyError, match="no row 'fakes'; the rows are eager, fake, vmap, package"):
        REPORT["fakes"]


def test_a_check_without_a_run_is_neither_passed_nor_failed():
    traced = dataclasses.replace(REPORT, rows=(Row("eager", "skipped"), Row("compile", "pass")))
    assert (traced.ok, traced.outcome) == (True, "incomplete")
    text = "1 passed, 0 failed, 1 skipped in 0.0 s; incomplete: neither eager nor numerics ran"
    assert traced.summary() == text
    assert json.loads(traced.as_json())["outcome"] == "incomplete"
    assert REPORT.outcome == "failed"
    for decisive in ("eager", "numerics"):
        assert dataclasses.replace(REPORT, rows=(Row(decisive, "pass"),)).outcome == "passed"


def report(name, *rows):
    return CheckReport(name, "ops.py:3", ("x: float32 (2,) on cpu",), "CPU, torch 2", rows)


SUMMARY = Summary(
    (
        report("lib::a", Row("eager", "pass", seconds=0.5)),
        report(
            "lib::bc",
            Row("eager", "pass", notes=("slow",)),
            Row("fake", "fail", "says <b> \x1b[31mred\x1b[0m\x00", "correct fake="),
        ),
        report("lib::d", Row("eager", "skipped", "needs a GPU"), Row("compile", "pass")),
    ),
    (Problem("ops/e.py", "it raised\nmore"),),
)


def test_the_text_has_failures_a_line_per_op_and_a_total():
    failures, lines, total = str(SUMMARY).rsplit("\n\n", 2)
    assert "fake  fail" in failures
    assert lines.splitlines() == [
        "  lib::a    passed       1 passed, 0 failed, 0 skipped in 0.5 s",
        "  lib::bc   failed       1 passed, 1 failed, 0 skipped in 0.0 s",
        "  lib::d    incomplete   1 passed, 0 failed, 1 skipped in 0.0 s",
        "  ops/e.py  not checked",
    ]
    assert total == "3 checked: 1 passed, 1 failed, 1 incomplete; 1 not checked; in 0.5 s"


def test_a_problem_names_its_op_once():
    error = BadOption("no input for 'x'", op="lib::e", location="ops.py:3")
    assert str(Problem("lib::e", str(error))) == "lib::e (ops.py:3): no input for 'x'"
    assert str(Problem("lib::e", "lib::e_too is not an op")) == "lib::e: lib::e_too is not an op"


def test_junit_has_a_suite_per_op_and_a_case_per_row():
    suites = ET.fromstring(SUMMARY.as_junit().partition("\n")[2])
    a, bc, d, unchecked = suites
    assert (a.get("name"), a.get("tests"), a.get("time")) == ("lib::a", "1", "0.500")
    eager, fake = bc
    assert (eager.get("classname"), eager.get("name")) == ("lib::bc", "eager")
    assert eager.find("system-out").text == "slow"
    assert fake.find("failure").get("message") == "says <b> red"
    assert fake.find("failure").text.endswith("fix: correct fake=")
    assert d.get("skipped") == "1"
    assert d[0].find("skipped").get("message") == "needs a GPU"
    assert unchecked[0].find("error").get("message") == "it raised"


def test_junit_totals_are_the_sums_of_the_cases():
    seconds = [0.0004, 0.0004, 1.0006]
    timed = report("lib::e", *(Row(f"row {s}", "pass", seconds=s) for s in seconds))
    summary = Summary((*SUMMARY.reports, timed), SUMMARY.problems)
    suites = ET.fromstring(summary.as_junit().partition("\n")[2])
    for suite in (suites, *suites):
        cases = list(suite.iter("testcase"))
        assert suite.get("tests") == str(len(cases)), suite.attrib
        for total, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert suite.get(total) == str(len(list(suite.iter(kind)))), suite.attrib
        assert suite.get("time") == f"{sum(float(case.get('time')) for case in cases):.3f}"
    assert (suites.get("tests"), suites.get("failures"), suites.get("errors")) == ("9", "1", "1")


def test_the_page_shows_every_op_and_escapes_what_it_quotes():
    page = SUMMARY.as_html()
    assert page.startswith("<!doctype html>")
    for name in ("lib::a", "lib::bc", "lib::d", "ops/e.py", "1 incomplete; 1 not checked"):
        assert name in page
    assert "says &lt;b&gt;" in page
    assert "says <b>" not in page
