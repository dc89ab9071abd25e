"""Processes that tests start: what they can import, and what they print."""

import importlib.util
import os
import runpy
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
# In place of the C++ library's.
HEADERS = Path(__file__).with_name("headers")


def python():
    """For children that may start with torch imported, which saves them seconds."""
    return os.environ.get("OPFORGE_TEST_PYTHON", sys.executable)


def is_torch_for_cuda():
    """Whether importing torch may start CUDA; tells without importing it."""
    torch = Path(importlib.util.find_spec("torch").origin)
    return runpy.run_path(str(torch.with_name("version.py")))["cuda"] is not None


def provide_python(folder, session):
    """A Python that has torch imported, for as long as the process `session` runs."""
    program = [sys.executable, "-IS", str(Path(__file__).with_name("preloaded_call.py"))]
    return _command(folder / "python", [*program, str(folder), str(session)])


def provide_compilers(folder):
    """A folder with a `cc` and a `c++` that compile nothing twice."""
    folder.mkdir(exist_ok=True)
    if not shutil.which("cc"):
        return str(folder)
    keep = folder / f"keep_objects.{os.getpid()}"
    subprocess.run(
        ["cc", "-O1", Path(__file__).with_name("keep_objects.c"), "-o", keep], check=True
    )
    for name in ("cc", "c++"):
        if compiler := shutil.which(name):
            _command(folder / name, [str(keep), str(folder / "objects"), compiler])
    return str(folder)


def without_machine_code():
    """Variables for children that build for the stand-in driver, which interprets kernels."""
    ptxas = os.environ.get("OPFORGE_TEST_PTXAS")
    if ptxas is None:
        return {}
    return {
        "TRITON_PTXAS_PATH": ptxas,
        "TRITON_LIBDEVICE_PATH": str(Path(__file__).with_name("libdevice.ll")),
        # Not what builds with machine code read.
        "OPFORGE_CACHE_DIR": str(Path(ptxas).with_name("images")),
    }


def provide_ptxas(folder):
    """A ptxas that assembles nothing."""
    triton = Path(importlib.util.find_spec("triton").origin).parent
    program = Path(__file__).with_name("ptxas.sh")
    return _command(folder / "ptxas", [str(program), str(triton / "backends/nvidia/bin/ptxas")])


def _command(place, command):
    """A program that runs `command` with its own arguments behind."""
    place.parent.mkdir(exist_ok=True)
    # Workers write it at the same time, and one may run it already.
    written = place.with_suffix(f".{os.getpid()}")
    written.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    written.chmod(0o755)
    written.rename(place)
    return str(place)


# For children in which opforge must not find torch's compiler and Triton imported already.
TORCH_ALONE = {"OPFORGE_TEST_IMPORTS": "torch"}
# For those in which strings have other hashes than here.
OTHER_SEED = TORCH_ALONE | {"PYTHONHASHSEED": str(1 + (os.environ.get("PYTHONHASHSEED") == "1"))}
# For those in which it matters when opforge is imported.
WITHOUT_OPFORGE = {"OPFORGE_TEST_IMPORTS": "compiler"}

# For a pytest that needs none of its plugins, opforge's among them.
WITHOUT_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def environment(*folders, **variables):
    """This process's variables, with a path to opforge, to `support` and to `folders`."""
    # Not sys.path: a module `ops` that another test imports would hide a tree of that name.
    places = [*folders, ROOT / "src", ROOT / "tests", os.environ.get("PYTHONPATH")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(str(p) for p in places if p)} | variables


def run_python(code, *, program=None, **variables):
    """The output of a process that runs a text, or a file if it ends in `.py`."""
    option = [] if str(code).endswith(".py") else ["-c"]
    result = subprocess.run(
        [program or python(), *option, code],
        capture_output=True,
        text=True,
        check=False,
        env=environment(**variables),
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def is_running(process):
    """Whether a process of that number is there and has not ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_until(holds, seconds=20):
    """Wait until a condition holds; fail if it does not in time."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds} seconds"
        time.sleep(0.02)
