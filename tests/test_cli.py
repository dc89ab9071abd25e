"""The `opforge` command: what it prints, where, and with which exit status."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import opforge
from opforge.cli import main
from opforge.doctor import examine, works
from opforge.errors import OpforgeWarning
from opforge.native import targets
from support.processes import environment, python

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
    whole = run("explain", str(sample)).stdout
    assert "cli_sample::double" in whole
    assert "cli_sample::triple" in whole
    assert run("explain").exit_code == 2


def test_explain_takes_a_function_that_is_not_decorated(sample):
    path = sample.parent / "cli_undecorated.py"
    path.write_text(
        "import torch\n\ndef halve(x: torch.Tensor) -> torch.Tensor:\n    return x / 2\n"
    )
    result = run("explain", f"{path}:halve")
    assert result.exit_code == 0, result.output
    assert result.stdout == opforge.explain(sys.modules["cli_undecorated"].halve) + "\n"
    assert "not registered yet: what @opforge.op would do" in result.stdout
    both = run("explain", f"{path}:halve", f"{sample}:double")
    assert "cli_sample::double" in both.stdout


def test_explain_of_a_tree_explains_each_operator_and_tells_what_does_not_load(tmp_path):
    tree = tmp_path / "cli_tree"
    for name in ("double", "triple"):
        (tree / name).mkdir(parents=True)
        (tree / name / "op.py").write_text(
            f"import opforge, torch\n\n@opforge.op('cli_tree::{name}', mode='custom_op')\n"
            f"def {name}(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\n"
        )
    result = run("explain", f"{tree}/")
    assert result.exit_code == 0, result.output
    assert "cli_tree::double" in result.stdout
    assert "cli_tree::triple" in result.stdout
    (tree / "broken.py").write_text("1 / 0\n")
    result = run("explain", f"{tree}/")
    assert result.exit_code == 1
    assert "cli_tree::triple" in result.stdout
    assert "ZeroDivisionError" in result.stderr


def test_an_opforge_error_in_the_users_file_is_reported_without_a_traceback(tmp_path):
    path = tmp_path / "cli_mistaken.py"
    path.write_text(MISTAKEN)
    result = run("explain", str(path))
    assert result.exit_code == 1
    assert "cli_mistaken.py:" in result.stderr
    assert "Traceback" not in result.stderr


EXITING = """
import sys

import opforge
import torch
import triton
from opforge import native

@triton.jit
def nothing(x):
    pass

@opforge.op("cli_exiting::leave", mutates_args=["x"])
def leave(x: torch.Tensor) -> None:
    nothing[(1,)](x)
    sys.exit(0)

native.declare(leave, x=native.tensor("n", dtype="fp16"))

def leave_inputs():
    return (torch.ones(3),), {}
"""


@pytest.mark.parametrize(
    "command", [("build", "--list"), ("build", "--force"), ("check", "--only", "eager")]
)
def test_a_body_that_exits_does_not_end_a_command_as_if_it_had_worked(command, tmp_path):
    path = tmp_path / "cli_exiting.py"
    path.write_text(EXITING.replace("nothing[(1,)](x)", "") if "check" in command else EXITING)
    sys.modules.pop("cli_exiting", None)
    result = run(*command, str(path))
    assert result.exit_code == 1, result.output
    assert "an operator's own code called sys.exit(0) while it ran\n  found: at" in result.stderr


def test_a_warning_names_no_line_of_click(sample, monkeypatch):
    # Which a command asks of each target.
    monkeypatch.setattr(targets, "is_tree", opforge.errors.warn)
    with pytest.warns(OpforgeWarning) as warned:
        assert run("explain", str(sample)).exit_code == 0
    assert [(str(w.message), w.filename, w.lineno) for w in warned] == [(str(sample), "opforge", 1)]


def test_a_full_disk_is_reported_without_a_traceback(sample, tmp_path):
    # A limit on the size of files stands for the disk: it takes no rights to set.
    code = (
        "import resource, sys, opforge.cli\n"
        "sys.dont_write_bytecode = True  # Python would leave them cut off\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "opforge.cli.main()\n"
    )
    command = [python(), "-c", code, "check", str(sample), "--html", str(tmp_path / "page.html")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 1
    assert "Error: a file cannot be written: File too large\n  fix: make room" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["build", "check", "report"])
def test_a_folder_that_cannot_be_read_is_reported_without_a_traceback(
    command, tmp_path, monkeypatch
):
    def refused(path, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    # The tests may run as root, who may read anything.
    for method in ("is_file", "iterdir", "glob", "read_text"):
        monkeypatch.setattr(type(tmp_path), method, refused)
    result = run(command, str(tmp_path))
    assert result.exit_code == 1
    assert f"Error: {tmp_path}" in result.stderr
    assert "cannot be opened: Permission denied\n  fix: " in result.stderr


def test_doctor_prints_a_row_for_each_finding_and_the_same_as_json():
    result = run("doctor")
    found = examine(thorough=True)
    printed = json.loads(run("doctor", "--json").stdout)
    assert [row["name"] for row in printed] == [finding.name for finding in found]
    assert result.exit_code == (0 if works(found) else 1)
    for finding in found:
        assert finding.name in result.stdout
        assert not finding.fix or result.stdout.count(f": {finding.fix}\n") == 1


def test_help_lists_every_command_with_its_whole_first_sentence():
    # What click takes of a terminal with 80 columns; in its test runner it would take all of them.
    shown = CliRunner().invoke(main, ["--help"], terminal_width=78).stdout
    for name, command in main.commands.items():
        assert f"  {name}  " in shown
        assert command.help.split("\n\n")[0].replace("\n", " ") in shown


@pytest.mark.parametrize("command", [(), *((name,) for name in main.commands)], ids=str)
def test_help_fits_80_columns(command):
    lines = run(*command, "--help").stdout.splitlines()
    assert max(map(len, lines)) <= 80


def child(*arguments, code=None):
    """A fresh process with the command, or with code that calls it."""
    command = ["-c", code] if code else ["-m", "opforge"]
    return subprocess.run(
        [sys.executable, *command, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )


def test_cmake_dir_prints_where_the_package_for_cmake_is_and_nothing_else():
    done = child("cmake-dir")
    assert (Path(done.stdout.removesuffix("\n")) / "opforgeConfig.cmake").is_file()
    assert done.stderr == ""


def test_cmake_dir_and_an_empty_tree_do_without_torch(tmp_path):
    code = (
        "import sys; from opforge.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print(*sorted({'torch', 'triton'} & set(sys.modules)), file=sys.stderr)"
    )
    assert child("cmake-dir", code=code).stderr == "\n"
    refused = child("build", f"{tmp_path}/", code=code)
    assert "has no operators" in refused.stderr
    assert refused.stderr.endswith("op.py\n\n")


DECLARED = """
import opforge
import torch
from opforge import native

@opforge.op("cli_listed::{name}", mode="custom_op")
def {name}(x: torch.Tensor, bias: torch.Tensor | None, eps: float = 1.0) -> torch.Tensor:
    \"\"\"Says {name}.

    At length.
    \"\"\"
    return x * eps

native.declare(
    {name}, x=native.tensor("...", dtype=("fp16", "fp32"), ranks=(1, 2)),
    bias=native.optional(native.tensor("n", dtype="fp32")), eps=native.scalar("fp32"),
)
"""


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """A tree with one operator, a folder that fails and one that is empty."""
    tree = tmp_path_factory.mktemp("cli") / "cli_listed"
    for name in ("good", "failing", "hollow"):
        (tree / name).mkdir(parents=True)
    (tree / "good" / "op.py").write_text(DECLARED.format(name="good"))
    (tree / "failing" / "op.py").write_text("1 / 0\n")
    return tree


def test_list_shows_what_it_can_and_reports_the_rest_with_status_1(listed):
    result = run("list", str(listed))
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"cli_listed::good  ({listed}/good/op.py:6)",
        "  Says good.",
        "  parameters  x: fp16 or fp32 tensor, bias: fp32 tensor or NULL, eps: fp32 scalar",
        "  cases       8",
        "  kernels     none found",
    ]
    assert f"Error: {listed}/failing: {listed}/failing/op.py raised" in result.stderr
    assert f"Error: {listed}/hollow: it has no op.py" in result.stderr


def test_list_prints_the_same_as_json(listed):
    result = run("list", "--json", str(listed))
    printed = json.loads(result.stdout)
    (operator,) = printed["operators"]
    assert (operator["name"], operator["cases"]) == ("cli_listed::good", 8)
    assert operator["parameters"][:2] == [
        {"name": "x", "kind": "tensor", "takes": ["fp16", "fp32"], "optional": False},
        {"name": "bias", "kind": "tensor", "takes": ["fp32"], "optional": True},
    ]
    assert len(printed["problems"]) == 2
