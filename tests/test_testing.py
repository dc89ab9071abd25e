"""`opforge.testing`: a check in a test suite."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor

import opforge
from opforge.testing import check_op
from support.launching import blocks, double, no_gpu
from support.processes import environment, python


def add_one(x: Tensor) -> Tensor:
    return x + 1


def test_check_op_returns_the_report_where_nothing_fails(op_name):
    report = check_op(opforge.op(op_name())(add_one), torch.ones(2), only=["eager", "fake"])
    assert report.ok


def test_check_op_raises_with_what_failed_and_the_fix(op_name):
    op = opforge.op(op_name(), fake=lambda x: x.new_empty(1))(add_one)
    with pytest.raises(AssertionError) as caught:
        check_op(op, torch.ones(2), only=["eager", "fake"])
    text = str(caught.value)
    assert "output: the fake says shape (1,), the op gives (2,)" in text
    assert "fix: correct fake=" in text
    assert "eager" not in text


@no_gpu
def test_a_test_is_skipped_where_the_op_cannot_run_and_passes_where_no_run_was_asked_for(op_name):
    @opforge.op(op_name())
    def launched(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        double[blocks(x.numel())](x, out, x.numel(), BLOCK=64)
        return out

    with pytest.raises(pytest.skip.Exception, match="needs a GPU: the op launches Triton kernels"):
        check_op(launched, torch.ones(4), only=["eager", "mutation"])
    assert check_op(launched, torch.ones(4), only="mutation")["mutation"].status == "pass"
    with pytest.raises(AssertionError, match="required, but it did not run"):
        check_op(launched, torch.ones(4), only=["eager", "mutation"], require="eager")


SUITE = """
import torch
import opforge

@opforge.op("suite::sound", mode="custom_op")
def sound(x: torch.Tensor) -> torch.Tensor:
    return x + 1

@opforge.op("suite::unsound", mode="custom_op", fake=lambda x: x.new_empty(1))
def unsound(x: torch.Tensor) -> torch.Tensor:
    return x + 1

def test_sound(opforge_check):
    assert opforge_check(sound, torch.ones(3), only=["eager", "fake"]).ok

def test_unsound(opforge_check):
    opforge_check(unsound, torch.ones(3), only=["eager", "opcheck", "fake"])
"""


def test_the_fixture_is_there_for_suites_that_name_the_plugin_once_or_twice(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["opforge.testing"]\n')
    (tmp_path / "test_suite.py").write_text(SUITE)
    env = environment()
    done = subprocess.run(
        [python(), "-m", "pytest", "-q", "-p", "opforge.testing", str(tmp_path)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "the fake says shape (1,), the op gives (3,)" in done.stdout
    # A failure shows the table, not what torch logs while it traces.
    assert "Captured" not in done.stdout


def test_importing_opforge_does_not_import_pytest():
    code = "import opforge, sys; print('pytest' in sys.modules, 'rich' in sys.modules)"
    env = environment()
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]
