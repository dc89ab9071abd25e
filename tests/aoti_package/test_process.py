"""The fresh process may crash; the caller survives and reports it."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from opforge.aoti_package import verify
from opforge.aoti_package.verify import run_fresh
from opforge.errors import BuildFailed
from opforge.libstdcxx import system_libstdcxx
from support.processes import environment, is_running, wait_until

PREAMBLE = """
import json, os, pathlib, signal, sys
spec = json.loads(pathlib.Path(sys.argv[1]).read_text())
def fine():
    pathlib.Path(spec["result"]).write_text(json.dumps({"seen": os.environ.get("LD_PRELOAD")}))
def die():
    sys.stderr.write("terminate called in std::regex\\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.fixture(autouse=True)
def _verified_in_a_fork():
    """Not here: these processes do not import torch."""


@pytest.fixture
def script(tmp_path):
    def write(code):
        path = tmp_path / "child.py"
        path.write_text(PREAMBLE + code)
        return path

    return write


def test_the_result_of_the_process_is_read(script, tmp_path):
    result = run_fresh({}, tmp_path, script("fine()"))
    assert (result["preload"], result["note"]) == ("", "")


def test_a_crash_is_retried_with_the_systems_libstdcxx_and_reported(script, tmp_path):
    result = run_fresh({}, tmp_path, script("fine() if 'LD_PRELOAD' in os.environ else die()"))
    assert result["preload"] == system_libstdcxx()
    assert result["seen"].split(":")[0] == result["preload"]
    assert "was killed by SIGSEGV, but ran with" in result["note"]
    assert f"LD_PRELOAD={result['preload']}" in result["note"]


def test_a_second_crash_raises_with_the_command_to_reproduce_it(script, tmp_path):
    path = script("die()")
    with pytest.raises(BuildFailed) as raised:
        run_fresh({}, tmp_path, path)
    text = str(raised.value)
    assert "killed by SIGSEGV; with LD_PRELOAD=" in text
    assert "found: terminate called in std::regex" in text
    command = text.partition("to reproduce it: ")[2]
    assert command.startswith("LD_PRELOAD=")
    # The command can be run as it is: the file it names still exists.
    assert Path(shlex.split(command)[-1]).exists()


def test_without_a_library_to_preload_the_error_says_what_to_install(script, tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "system_libstdcxx", lambda: None)
    with pytest.raises(BuildFailed, match="install the shared one and run: LD_PRELOAD="):
        run_fresh({}, tmp_path, script("die()"))


def test_an_exit_status_is_not_retried(script, tmp_path):
    with pytest.raises(BuildFailed) as raised:
        run_fresh({}, tmp_path, script("sys.exit('no torch here')"))
    assert "exited with status 1" in str(raised.value)
    assert raised.value.found == "no torch here"


def test_the_process_ends_when_a_signal_ends_the_one_that_waits_for_it(tmp_path):
    begun = tmp_path / "begun"
    module = tmp_path / "takes_long.py"
    module.write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(begun)!r}).write_text(str(os.getpid()))\ntime.sleep(600)\n"
    )
    (tmp_path / "torch.py").touch()
    modules = [{"module": "takes_long", "file": str(module)}]
    path = [str(tmp_path), *sys.path]
    spec = json.dumps({"sys_path": path, "libraries": [], "modules": modules})
    code = f"""
import json, pathlib
from opforge.aoti_package.verify import run_fresh

run_fresh(json.loads({spec!r}), pathlib.Path({str(tmp_path)!r}))
"""
    with subprocess.Popen([sys.executable, "-c", code], env=environment()) as waiting:
        wait_until(lambda: begun.exists() and begun.read_text(), 60)
        process = int(begun.read_text())
        waiting.kill()
        waiting.wait()
    try:
        wait_until(lambda: not is_running(process), 5)
    finally:
        if is_running(process):
            os.kill(process, signal.SIGKILL)
