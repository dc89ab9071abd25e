"""Processes that have what a wheel installs, and nothing of opforge."""

import os
import subprocess
import sys

from support.processes import ROOT
from support.standin.driver import build_standin

HEAD = """
import sys
blocked = set(sys.argv[1].split(","))
class Blocked:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"{name} is not installed", name=name.partition(".")[0])
sys.meta_path.insert(0, Blocked())
"""
CALL = """
import ctypes, pathlib
import shipped_ops
import torch
from support.standin import driver

driver.build_standin = lambda: pathlib.Path(sys.argv[2])
standin = driver.load_standin()
standin.reset()
def execute(launched):
    count = launched.read(3, ctypes.c_int32)
    x, y, out = (
        (ctypes.c_float * count).from_address(launched.read(i, ctypes.c_void_p)) for i in range(3)
    )
    out[:] = [a + b for a, b in zip(x, y)]
standin.execute = execute
# The operators are for CUDA; here the stand-in driver has them on the CPU.
adapter = ctypes.CDLL(shipped_ops.get_library().replace(".so", "_torch.so"))
adapter.shipped_ops_torch_detach(b"demo::add")
assert adapter.shipped_ops_torch_attach(b"demo::add", b"CPU") == 0
x, y = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)
for add in (shipped_ops.add, torch.ops.demo.add):
    assert torch.equal(add(x, y), x + y)
assert torch.equal(shipped_ops.add(y=y, x=x), x + y)
assert [launch.function for launch in standin.launches] == ["add_kernel"] * 3, standin.errors
assert not {"opforge", "triton"} & set(sys.modules)
print(torch.__version__)
"""


def run(code, *folders, blocked="opforge,triton", arguments=(), **variables):
    """In a process that has these folders, no opforge, no Triton and no compiler."""
    places = [*folders, ROOT / "tests"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    given = {"PATH": "/nowhere", "PYTHONPATH": os.pathsep.join(map(str, places))} | variables
    return subprocess.run(
        [sys.executable, "-c", HEAD + code, blocked, str(build_standin()), *map(str, arguments)],
        env=kept | given, capture_output=True, text=True, check=False,
    )  # fmt: skip
