"""`opforge check`: what it prints, where, and with which exit status."""

import json
import re
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from opforge.cli import main

SOURCE = """
import dataclasses
import opforge
import torch

@dataclasses.dataclass(frozen=True)
class Config:
    weight: torch.Tensor
    eps: float = 1e-6

@opforge.op("check_sample::scaled", mode="custom_op")
def scaled(x: torch.Tensor, cfg: Config) -> torch.Tensor:
    return x * cfg.weight + cfg.eps

@opforge.op("check_sample::wrong", mode="custom_op", fake=lambda x: x.new_empty(1))
def wrong(x: torch.Tensor) -> torch.Tensor:
    return x + 1

def inputs():
    return (torch.ones(4, 3), Config(torch.ones(3))), {}

def halves():
    return torch.ones(4, 3)

def fails():
    return 1 / 0

def reference(x, cfg):
    return x * cfg.weight + cfg.eps

def other(x, cfg):
    return x + 0.05
"""


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    path = tmp_path_factory.mktemp("check") / "check_sample.py"
    path.write_text(SOURCE)
    return path


def run(*arguments):
    return CliRunner().invoke(main, ["check", *map(str, arguments)])


INPUTS = ("--input", "x=randn(4, 3)", "--input", "cfg.weight=ones(3)")
FAST = ("--only", "eager", "--only", "fake", "--only", "numerics")


def test_rows_are_named_with_commas_or_one_by_one(sample):
    rows = ("--only", "eager,fake, numerics", "--skip", "fake")
    result = run(f"{sample}:scaled", *INPUTS, *rows, "--json")
    assert [r["name"] for r in json.loads(result.stdout)["rows"]] == ["eager", "numerics"]
    assert result.exit_code == 0
    result = run(f"{sample}:scaled", *INPUTS, *rows, "--require", "eager,numerics")
    assert result.exit_code == 1
    assert "required, but it did not run" in result.stdout


def test_an_incomplete_check_says_so_and_its_exit_status_is_0(sample):
    given = (*INPUTS, "--only", "numerics")
    result = run(f"{sample}:scaled", *given)
    assert result.exit_code == 0
    assert result.stdout.rstrip().endswith("incomplete: neither eager nor numerics ran")
    assert json.loads(run(f"{sample}:scaled", *given, "--json").stdout)["outcome"] == "incomplete"


def test_json_has_the_rows_and_nothing_else_is_printed(sample):
    result = run(f"{sample}:wrong", "--input", "x=ones(4)", "--json", *FAST)
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["ok"] is False
    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == ["eager", "fake", "numerics"]
    assert rows["fake"]["status"] == "fail"
    assert rows["fake"]["reason"].startswith("output: the fake says shape")
    assert {"name", "status", "reason", "fix", "seconds", "notes"} == set(rows["eager"])


def test_a_reference_is_named_like_an_op(sample):
    options = ("--inputs", f"{sample}:inputs", *FAST)
    result = run(f"{sample}:scaled", *options, "--reference", f"{sample}:reference")
    assert result.exit_code == 0, result.output
    result = run(f"{sample}:scaled", *options, "--reference", f"{sample}:other")
    assert result.exit_code == 1
    loose = ("--reference", f"{sample}:other", "--tolerance", "0.1")
    assert run(f"{sample}:scaled", *options, *loose).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--inputs", ":halves"), "must return (args, kwargs)"),
        (("--inputs", ":inputz"), "did you mean inputs?"),
        (("--inputs", ":inputs", "--input", "x=1"), "--input and --inputs were both given"),
        (("--inputs", ":Config.eps"), "has no 'Config.eps'"),
        (("--input", "x=randn(4"), "'(' was never closed"),
        (("--input", "x=ones(4)"), "no input for 'cfg.weight'"),
        (("--input", "y=ones(4)"), "the op has no 'y'"),
        ((*INPUTS, "--only", "exports"), "there is no row 'exports'"),
    ],
)
def test_mistakes_are_reported_on_stderr_without_a_traceback(sample, arguments, text):
    placed = [f"{sample}{a}" if a.startswith(":") else a for a in arguments]
    result = run(f"{sample}:scaled", *placed)
    assert result.exit_code == 1
    assert text in result.stderr
    assert "Traceback" not in result.stderr


def test_in_a_pipe_each_row_is_a_line_on_stderr(sample):
    result = run(f"{sample}:scaled", *INPUTS, *FAST)
    lines = result.stderr.splitlines()
    assert [line.rpartition(", ")[0] for line in lines] == [
        "check_sample::scaled: eager: pass",
        "check_sample::scaled: fake: pass",
        "check_sample::scaled: numerics: skipped",
    ]
    assert run(f"{sample}:scaled", *INPUTS, *FAST, "--json").stderr == ""


def test_every_operator_of_a_file_is_checked(sample):
    result = run(sample, "--input", "x=ones(4, 3)", "--input", "cfg.weight=ones(3)", *FAST)
    assert result.exit_code == 1
    assert "  output: the fake says shape (1,), the op gives (4, 3)" in result.stdout
    *_, scaled, wrong, empty, total = result.stdout.splitlines()
    assert scaled.split()[:2] == ["check_sample::scaled", "passed"]
    assert wrong.split()[:2] == ["check_sample::wrong", "failed"]
    assert empty == ""
    assert total.startswith("2 checked: 1 passed, 1 failed, 0 incomplete; in ")
    assert "[1/2] check_sample::scaled: fake: pass" in result.stderr
    assert "[2/2] check_sample::wrong: failed; 1 passed, 1 failed, 1 skipped in" in result.stderr


def test_the_reports_of_several_operators_are_one_json(sample):
    texts = ("--input", "x=ones(4, 3)", "--input", "cfg.weight=ones(3)")
    result = run(sample, *texts, *FAST, "--json")
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert (found["ok"], found["problems"]) == (False, [])
    assert [r["outcome"] for r in found["reports"]] == ["passed", "failed"]


def test_an_operator_without_inputs_is_told_and_the_others_are_checked(sample):
    result = run(sample, "--input", "x=ones(4, 3)", *FAST)
    assert result.exit_code == 1
    assert "check_sample::scaled  not checked" in result.stdout
    assert "1 failed, 0 incomplete; 1 not checked" in result.stdout
    assert "no input for 'cfg.weight'" in result.stderr
    assert "write def scaled_inputs() next to it" in result.stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--inputs", ":inputs"), "--inputs is for one operator, and there are 2"),
        (("--reference", ":reference"), "--reference is for one operator, and there are 2"),
        (("--input", "z=1"), "no operator has 'z'"),
        (("--junit", "/nowhere/report.xml"), "/nowhere/report.xml cannot be written"),
    ],
)
def test_mistakes_with_several_operators_are_told_before_the_checks(sample, options, text):
    placed = [f"{sample}{o}" if o.startswith(":") else o for o in options]
    result = run(sample, *placed, *FAST)
    assert result.exit_code == 1
    assert text in result.stderr
    assert result.stdout == ""


TREE = {
    "halve/op.py": """
import opforge
import torch
from ..shared import factor

@opforge.op("check_tree::halve", mode="custom_op")
def halve(x: torch.Tensor) -> torch.Tensor:
    return x * factor

def halve_inputs():
    return (torch.ones(4, 3),), {}

def halve_reference(x):
    return x / 2
""",
    "third.py": """
import opforge
import torch

@opforge.op("check_tree::third", mode="custom_op")
def third(x: torch.Tensor) -> torch.Tensor:
    return x / 3

def third_inputs():
    return (torch.ones(4, 3),), {}

def third_reference(x):
    return x / 4
""",
    "shared.py": "factor = 0.5\n",
    "broken.py": "1 / 0\n",
    "_private.py": "raise SystemExit\n",
    "test_tree.py": "raise SystemExit\n",
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("check") / "check_tree"
    for path, text in TREE.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def test_a_tree_is_checked_with_the_functions_beside_the_operators(tree, tmp_path):
    junit, page = tmp_path / "report.xml", tmp_path / "report.html"
    result = run(f"{tree}/", *FAST, "--junit", junit, "--html", page)
    assert result.exit_code == 1
    assert "2 checked: 1 passed, 1 failed, 0 incomplete; 1 not checked" in result.stdout
    assert "ZeroDivisionError" in result.stderr
    suites = ET.parse(junit).getroot()
    assert [(s.get("name"), s.get("failures"), s.get("errors")) for s in suites] == [
        ("check_tree::halve", "0", "0"),
        ("check_tree::third", "1", "0"),
        ("not checked", "0", "1"),
    ]
    assert "check_tree::third" in page.read_text()


VENDORED = """
import opforge
import torch
from check_vendor_{0} import vscale

scale_op = opforge.op(vscale, name="check_vendored_{0}::scale", schema="(Tensor a) -> Tensor")

def {1}_inputs():
    return (), {{"a": torch.ones(3)}}

def {1}_reference(x):
    return x * 2
"""


@pytest.mark.parametrize(
    ("named", "whole_folder"), [("scale_op", False), ("scale", True), ("vscale", False)]
)
def test_functions_beside_an_op_of_a_foreign_function_are_found(
    tmp_path, monkeypatch, named, whole_folder
):
    (tmp_path / "vendor").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "vendor")
    case = f"{named}_{int(whole_folder)}"
    source = "def vscale(x):\n    return x * 2\n"
    (tmp_path / "vendor" / f"check_vendor_{case}.py").write_text(source)
    folder = tmp_path / f"check_vendored_{case}"
    folder.mkdir()
    # It is loaded first, and holds the op, but no functions.
    (folder / "again.py").write_text("from .vendored import scale_op\n" if whole_folder else "")
    file = folder / "vendored.py" if whole_folder else folder / f"check_alone_{case}.py"
    file.write_text(VENDORED.format(case, named))
    result = run(f"{folder}/" if whole_folder else file, "--only", "eager,numerics", "--json")
    found = json.loads(result.stdout)
    (report,) = found["reports"] if whole_folder else [found]
    assert {row["name"]: row["status"] for row in report["rows"]} == {
        "eager": "pass",
        "numerics": "pass",
    }


def test_in_a_terminal_a_bar_counts_rows_and_statuses_have_colours(sample, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    result = CliRunner().invoke(main, ["check", f"{sample}:scaled", *INPUTS, *FAST], color=True)
    assert result.exit_code == 0
    assert "3/3" in result.stderr
    assert re.search(r"fake +\x1b\[32mpass", result.stdout)
