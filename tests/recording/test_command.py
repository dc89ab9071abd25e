"""`opforge record` of a program and of the processes that it starts, and `opforge list` of that."""

import json
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from opforge.cli import main
from opforge.recording.journal import read_folder
from opforge.recording.model import read
from support.processes import ROOT, environment

# Not a preloaded one, which does not read sitecustomize again.
PYTHON = [sys.executable]
PROGRAM = ROOT / "tests" / "support" / "recorded_programs.py"


def opforge(*arguments, **variables):
    return subprocess.run(
        [*PYTHON, "-m", "opforge", *map(str, arguments)],
        env=environment(**variables), capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The program, with a sitecustomize of its user."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "sitecustomize.py").write_text("print('mine')\n")
    places = environment(folder)["PYTHONPATH"]
    done = opforge(
        "record", "-o", folder / "launches.json", "--", sys.executable, PROGRAM, PYTHONPATH=places
    )
    return done, folder / "launches.json"


def test_every_process_is_recorded_and_the_status_is_the_programs(recorded):
    done, path = recorded
    assert done.returncode == 3, done.stderr
    said = "1 kernel, 4 variants, 20 launches of 4 processes"
    assert done.stderr.endswith(f"launches.json: {said}\n")
    (kernel,) = read(path).kernels
    assert (kernel.module, kernel.name) == (str(PROGRAM), "scale")
    blocks = {dict(v.constants)["BLOCK"]: (v.launches, v.sizes) for v in kernel.variants}
    assert blocks == {
        64: (5, ({"n": 16},)),
        128: (5, ({"n": 17},)),
        256: (5, ({"n": 17},)),
        512: (5, ({"n": 1},)),
    }


def test_the_users_own_sitecustomize_runs(recorded):
    done, _ = recorded
    # In opforge, in the program, in the spawned process and in multiprocessing's tracker.
    assert done.stdout.count("mine\n") >= 3


def test_a_recording_is_listed(recorded):
    _, path = recorded
    listed = CliRunner().invoke(main, ["list", str(path)]).output
    lines = listed.splitlines()
    assert lines[0] == "1 kernel, 4 variants, 20 launches of 4 processes"
    assert lines[2].split() == ["kernel", "variant", "launches", "sizes"]
    # Long paths are folded into their columns.
    width = lines[2].index("variant")
    assert f"{PROGRAM}:scale" in "".join(line[:width].strip() for line in lines[4:])
    (first,) = [line for line in lines if "x_ptr: *fp32 (16), n: i32 (16)," in line]
    assert first.split()[-2:] == ["5", "n=16"]
    assert json.loads(CliRunner().invoke(main, ["list", "--json", str(path)]).output)["format"] == 1


def test_recordings_are_merged(recorded, tmp_path):
    _, path = recorded
    into = tmp_path / "all.json"
    done = CliRunner().invoke(main, ["record", "--merge", str(path), str(path), "-o", str(into)])
    assert done.output == f"{into}: 1 kernel, 4 variants, 40 launches of 8 processes\n"
    assert read(into).launches == 40


def test_a_program_that_launches_nothing_is_told(tmp_path):
    out = tmp_path / "launches.json"
    done = opforge("record", "-o", out, "--", sys.executable, "-c", "print(1)")
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert done.stderr.startswith("nothing was recorded: the program launched no Triton kernel")
    assert read(out).kernels == ()


def test_a_signal_reaches_the_program_and_what_it_launched_is_written(tmp_path):
    out, ready = tmp_path / "launches.json", tmp_path / "ready"
    code = (
        "from support.recorded_programs import work; import pathlib, time;"
        f"work(16, 64); pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"
    )
    started = subprocess.Popen(
        [*PYTHON, "-m", "opforge", "record", "-o", str(out), "--", *PYTHON, "-c", code],
        env=environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not ready.exists():
        assert started.poll() is None, started.stderr.read()
        time.sleep(0.05)
    started.send_signal(signal.SIGTERM)
    _, said = started.communicate()
    assert started.returncode == 128 + signal.SIGTERM, said
    (kernel,) = read(out).kernels
    assert (kernel.module, kernel.launches) == ("support.recorded_programs", 5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "no/such/x.json", "--", "true"], "no/such/x.json cannot be written"),
        (["--", "no-such-program"], "no-such-program cannot be run: No such file or directory"),
        (["--merge", "gone.json"], "gone.json does not exist"),
    ],
)
def test_what_cannot_be_done_is_told(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["record", *arguments])
    assert done.exit_code == 1
    assert said in done.output


def test_lines_that_are_damaged_are_told_and_a_torn_last_one_is_not(recorded, tmp_path):
    (tmp_path / "launches-1-a.jsonl").write_text('{"triton": 3}\n[1]\n{"kernel": {}}\n{"tri')
    found, problems = read_folder(tmp_path)
    assert found.kernels == ()
    assert [problem.partition(": ")[0] for problem in problems] == [
        f"launches-1-a.jsonl:{number}" for number in (1, 2, 3)
    ]
