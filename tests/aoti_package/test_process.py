"""The fresh process may crash; the caller survives and reports it."""

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


def test_where_packages_bring_a_libstdcxx_the_systems_is_preloaded(script, tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "to_preload", lambda: "/lib/libstdc++.so.6")
    monkeypatch.setenv("LD_PRELOAD", "")
    result = run_fresh({}, tmp_path, script("fine()"))
    assert result["preload"] == result["seen"] == "/lib/libstdc++.so.6"


@pytest.mark.parametrize(
    ("code", "status", "stderr"),
    [("die()", "SIGSEGV", "std::regex"), ("sys.exit('no torch here')", "status 1", "no torch")],
)
def test_a_process_that_ends_badly_is_told_with_what_it_said(
    code, status, stderr, script, tmp_path
):
    with pytest.raises(BuildFailed, match=status) as raised:
        run_fresh({}, tmp_path, script(code))
    assert stderr in raised.value.found
