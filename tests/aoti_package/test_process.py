"""The fresh process may crash; the caller survives and reports it."""

import shlex
from pathlib import Path

import pytest

from opforge.aoti_package import verify
from opforge.aoti_package.verify import run_fresh
from opforge.errors import BuildFailed

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
    assert result["preload"] == ""


def test_where_packages_bring_a_libstdcxx_the_systems_is_preloaded(script, tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "to_preload", lambda: "/lib/libstdc++.so.6")
    monkeypatch.setenv("LD_PRELOAD", "")
    result = run_fresh({}, tmp_path, script("fine()"))
    assert result["preload"] == result["seen"] == "/lib/libstdc++.so.6"


def test_a_crash_raises_with_the_command_to_reproduce_it(script, tmp_path):
    with pytest.raises(BuildFailed, match="was killed by SIGSEGV") as raised:
        run_fresh({}, tmp_path, script("die()"))
    assert raised.value.found == "terminate called in std::regex"
    command = raised.value.fix.partition("to reproduce it: ")[2]
    # The command can be run as it is: the file it names still exists.
    assert Path(shlex.split(command)[-1]).exists()


def test_an_exit_status_is_told_with_what_was_on_stderr(script, tmp_path):
    with pytest.raises(BuildFailed) as raised:
        run_fresh({}, tmp_path, script("sys.exit('no torch here')"))
    assert "exited with status 1" in str(raised.value)
    assert raised.value.found == "no torch here"
