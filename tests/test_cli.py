"""The `opforge` command: what it prints, where, and with which exit status."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

import opforge
from opforge.cli import main
from opforge.doctor import examine

SOURCE = """
import opforge
import torch

@opforge.op("cli_sample::double", mode="custom_op")
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@opforge.op("cli_sample::triple", mode="custom_op")
def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3
"""

MISTAKEN = """
import opforge

@opforge.op("cli_mistaken::unannotated")
def unannotated(x):
    return x
"""


def run(*arguments):
    return CliRunner().invoke(main, arguments)


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "cli_sample.py"
    path.write_text(SOURCE)
    return path


def test_explain_prints_what_opforge_explain_says(sample):
    result = run("explain", f"{sample}:double")
    assert result.exit_code == 0, result.output
    assert result.stdout == opforge.explain(sys.modules["cli_sample"].double) + "\n"


def test_explain_of_a_file_explains_each_operator(sample):
    result = run("explain", str(sample))
    assert "cli_sample::double" in result.stdout
    assert "cli_sample::triple" in result.stdout


def test_a_target_that_leads_nowhere_is_told_on_stderr_with_status_1(sample):
    result = run("explain", f"{sample}:duble")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "did you mean double?" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_opforge_error_in_the_users_file_is_told_without_a_traceback(tmp_path):
    path = tmp_path / "cli_mistaken.py"
    path.write_text(MISTAKEN)
    result = run("explain", str(path))
    assert result.exit_code == 1
    assert "cli_mistaken.py:" in result.stderr
    assert "Traceback" not in result.stderr


def test_any_other_error_in_the_users_file_shows_its_own_traceback_and_not_opforges(tmp_path):
    path = tmp_path / "cli_failing.py"
    path.write_text("def divide():\n    1 / 0\n\ndivide()\n")
    result = run("explain", str(path))
    assert result.exit_code == 1
    assert result.stderr.count("Traceback") == 1
    assert result.stderr.rstrip().endswith("ZeroDivisionError: division by zero")
    frames = [line for line in result.stderr.splitlines() if line.startswith("  File")]
    assert [str(path) in line for line in frames] == [True, True]


def test_explain_without_a_target_is_a_usage_error():
    assert run("explain").exit_code == 2


def test_doctor_prints_a_row_for_each_finding():
    result = run("doctor")
    assert result.exit_code == 0
    for finding in examine():
        assert finding.name in result.stdout
        assert finding.fix in result.stdout


def test_doctor_prints_the_same_as_json():
    result = run("doctor", "--json")
    printed = {(row["name"], row["status"], row["fix"]) for row in json.loads(result.stdout)}
    assert printed == {(f.name, f.status, f.fix) for f in examine()}


def test_help_lists_the_commands():
    result = run("--help")
    assert "explain" in result.stdout
    assert "doctor" in result.stdout


def test_a_real_process_prints_nothing_but_the_json():
    code = "from opforge.cli import main; main()"
    command = [sys.executable, "-c", code, "doctor", "--json"]
    # The child must find opforge where this process does.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert json.loads(ran.stdout)
    assert ran.stderr == ""


def test_python_dash_m_runs_the_command():
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-m", "opforge", "--version"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert done.stdout.strip() == f"opforge, version {opforge.__version__}", done.stderr
