"""`opforge record` of a program and of the processes that it starts, and `opforge list` of that."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import opforge as api
from opforge.cli import main
from opforge.errors import BadOption, OpforgeWarning
from opforge.recording.journal import Journal, read_folder
from opforge.recording.model import Missed, RecordedKernel, Recording, read
from opforge.serving.find import find
from support.processes import ROOT, environment, python

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


@pytest.mark.parametrize("before", [None, Recording((RecordedKernel("m", "k", "0", "m.py:1"),))])
def test_a_run_that_records_nothing_is_told_and_leaves_the_file_as_it_is(tmp_path, before):
    path = tmp_path / "launches.json"
    if before:
        before.save(path)
    said = "is left as it was" if before else "is not written"
    done = opforge("record", "-o", path, "--", sys.executable, "-c", "print(1); raise ValueError")
    assert (done.returncode, done.stdout) == (1, "1\n")
    assert "nothing was recorded: the program launched no Triton kernel" in done.stderr
    assert done.stderr.endswith(f"{path} {said}\n")
    with pytest.warns(OpforgeWarning, match=said), api.record(path):
        pass
    assert path.exists() == bool(before)
    assert not before or read(path) == before


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


def test_a_recording_is_listed(recorded, monkeypatch):
    _, path = recorded
    monkeypatch.chdir(PROGRAM.parent)
    listed = CliRunner().invoke(main, ["list", str(path)]).output
    lines = listed.splitlines()
    assert lines[0] == "1 kernel, 4 variants, 20 launches of 4 processes"
    assert lines[2].split() == ["kernel", "variant", "launches", "sizes"]
    assert any(line.startswith(f"  {PROGRAM.name}:scale ") for line in lines)
    (first,) = [line for line in lines if "x_ptr: *fp32 (16), n: i32 (16)," in line]
    assert first.split()[-2:] == ["5", "n=16"]
    assert json.loads(CliRunner().invoke(main, ["list", "--json", str(path)]).output)["format"] == 3


def test_recordings_are_merged(recorded, tmp_path):
    _, path = recorded
    into = tmp_path / "all.json"
    done = CliRunner().invoke(main, ["record", "--merge", str(path), str(path), "-o", str(into)])
    assert done.output == f"{into}: 1 kernel, 4 variants, 40 launches of 8 processes\n"
    assert read(into).launches == 40


def test_a_signal_reaches_the_program_and_what_it_launched_is_written(tmp_path):
    out, ready = tmp_path / "launches.json", tmp_path / "ready"
    # The first import does what a Python that is not preloaded does when it starts.
    code = (
        "import sitecustomize; from support.recorded_programs import work; import pathlib, time;"
        f"work(16, 64); pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"
    )
    started = subprocess.Popen(
        [*PYTHON, "-m", "opforge", "record", "-o", str(out), "--", python(), "-c", code],
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
        (["--", "no-such-program"], "no-such-program cannot be run: No such file or directory"),
        (["--merge", "gone.json"], "No such file or directory: 'gone.json'"),
    ],
)
def test_what_cannot_be_done_is_told(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["record", *arguments])
    assert done.exit_code == 1
    assert said in done.output


def test_a_process_that_is_killed_while_it_writes_leaves_whole_lines(tmp_path):
    missed = [Missed("k", "k.py:1", why) for why in ("one", "other")]
    journal = Journal(tmp_path)
    for one in missed:
        journal.add(Recording(missed=(one,)))
    journal._file.close()
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text()[:-3])
    assert read_folder(tmp_path).missed == (missed[0],)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("launches", "a recording must be named *.json, got 'launches'"),
        ("nowhere/l.json", "No such file or directory"),
        ("folder.json", "folder.json cannot be written"),
        # Its permissions allow it.
        ("/proc/x.json", "/proc/x.json cannot be written"),
    ],
)
def test_what_cannot_be_written_is_told_before_the_program_runs(
    tmp_path, monkeypatch, output, said
):
    monkeypatch.chdir(tmp_path)
    Path("folder.json").mkdir()
    for command in (["record", "-o", output, "--", "touch", "ran"],
                    ["record", "--merge", "-o", output, "a.json"]):  # fmt: skip
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 1
        assert said in done.output
    with pytest.raises(BadOption), api.record(output):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["folder.json"]


def test_a_process_that_outlives_the_command_goes_on(tmp_path):
    child = (
        "import time, pathlib; time.sleep(1.5); import triton;"
        f"pathlib.Path({str(tmp_path / 'done')!r}).touch()"
    )
    program = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}])"
    opforge("record", "-o", tmp_path / "l.json", "--", sys.executable, "-c", program)
    for _ in range(300):
        if (tmp_path / "done").exists():
            return
        time.sleep(0.1)
    raise AssertionError("the process did not get past its import")


def test_a_journal_that_cannot_be_written_is_not_the_programs_error(tmp_path, capfd):
    journal = Journal(tmp_path)
    journal._file.close()
    journal._file = open("/dev/full", "w")  # noqa: SIM115, PTH123
    for _ in range(3):
        journal.add(Recording(missed=(Missed("k", "k.py:1", "why"),)))
    assert capfd.readouterr().err.count("No space left on device") == 1
    tmp_path.rename(tmp_path.with_name(f"{tmp_path.name}_moved"))
    journal.begin()
    assert "No such file or directory" in capfd.readouterr().err


def test_under_dash_m_a_kernel_has_the_name_of_its_module(tmp_path):
    package = tmp_path / "dashm"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "helper.py").write_text("SIZE = 64\n")
    (package / "work.py").write_text(
        "from support.recorded_programs import scale\n"
        "import torch, triton, opforge\n"
        "from torch._subclasses import FakeTensorMode\n"
        "from .helper import SIZE\n"
        "@triton.jit\n"
        "def own(x_ptr):\n"
        "    pass\n"
        "if __name__ == '__main__':\n"
        "    with opforge.target('sm_90'), FakeTensorMode():\n"
        "        own[(1,)](torch.empty(SIZE, device='cuda'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "opforge", "record", "-o", "l.json", "--",
         sys.executable, "-m", "dashm.work"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (kernel,) = read(tmp_path / "l.json").kernels
    assert (kernel.module, kernel.name) == ("dashm.work", "own")
    # A build finds it without the folder on the path.
    assert find(kernel).fn.__module__ == "dashm.work"
