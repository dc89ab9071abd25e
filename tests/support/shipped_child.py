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
STANDIN = """
import ctypes, pathlib
from support.standin import driver

driver.build_standin = lambda _: pathlib.Path(sys.argv[2])
standin = driver.load_standin()
standin.reset()
def execute(launched):
    count = launched.read(3, ctypes.c_int32)
    x, y, out = (
        (ctypes.c_float * count).from_address(launched.read(i, ctypes.c_void_p)) for i in range(3)
    )
    out[:] = [a + b for a, b in zip(x, y)]
standin.execute = execute
"""
CALL = (
    STANDIN
    + """
import shipped_ops
import torch
# The operators are for CUDA; here the stand-in driver has them on the CPU.
adapter = ctypes.CDLL(shipped_ops.get_library().replace(".so", "_torch.so"))
adapter.shipped_ops_torch_detach(b"demo::add")
assert adapter.shipped_ops_torch_attach(b"demo::add", b"CPU") == 0
x, y = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)
NO_GRADIENT = (
    "demo::add: an input requires grad or has a tangent, but the operator has no derivative",
    "demo::add: an input requires grad, but the operator has no derivative",
)
for add in (shipped_ops.add, torch.ops.demo.add):
    assert torch.equal(add(x, y), x + y)
assert torch.equal(shipped_ops.add(y=y, x=x), x + y)
assert [launch.function for launch in standin.launches] == ["add_kernel"] * 3, standin.errors
assert not {"opforge", "triton"} & set(sys.modules)
print(torch.__version__)
"""
)
# In a process that may have Triton: torch's compiler imports it where it is.
TRACE = (
    STANDIN
    + """
import shipped_ops
import torch
adapter = ctypes.CDLL(shipped_ops.get_library().replace(".so", "_torch.so"))
for name in (b"demo::add", b"demo::plus"):
    adapter.shipped_ops_torch_detach(name)
    assert adapter.shipped_ops_torch_attach(name, b"CPU") == 0

x, y = torch.arange(6.0).reshape(2, 3).requires_grad_(), torch.ones(2, 3).requires_grad_()
compiled = torch.compile(shipped_ops.plus, backend="aot_eager", fullgraph=True)
for plus in (shipped_ops.plus, compiled):
    x.grad = y.grad = None
    z = plus(x, y)
    torch.autograd.backward(z, torch.full((2, 3), 5.0))
    print(z.tolist(), x.grad.tolist(), y.grad.tolist())

module = torch.nn.Module()
module.forward = shipped_ops.add
n = {0: torch.export.Dim("n", min=3)}
inputs = (torch.ones(4, 3), torch.ones(4, 3))
program = torch.export.export(module, inputs, dynamic_shapes=(n, n))
(made,) = (node.meta["val"] for node in program.graph.nodes if node.op == "call_function")
print(made.dtype, [isinstance(size, torch.SymInt) or size for size in made.shape])

NO_GRADIENT = (
    "demo::add: an input requires grad or has a tangent, but the operator has no derivative",
    "demo::add: an input requires grad, but the operator has no derivative",
)
for add in (shipped_ops.add, torch.compile(shipped_ops.add, backend="eager", fullgraph=True)):
    try:
        add(x, y)
    except RuntimeError as error:
        (found,) = (one for one in NO_GRADIENT if one in str(error))
        print(found)

# torch.func would take what it cannot differentiate for a constant.
mapped = torch.vmap(shipped_ops.plus)(x, y.detach())
mapped.sum().backward()
constant = torch.func.grad(lambda a: shipped_ops.add(a.detach(), a.detach()).sum())(x.detach())
print(mapped.tolist() == (x + 1).tolist(), constant.tolist())
for op in (shipped_ops.add, shipped_ops.plus):
    for derivative in (
        lambda: torch.func.grad(lambda a: op(a, y).sum())(x.detach()),
        lambda: torch.func.jvp(op, (x.detach(), y), (x.detach(), y)),
        lambda: torch.vmap(torch.func.grad(lambda a: op(a, a).sum()))(x.detach()),
    ):
        try:
            print(derivative())
        except RuntimeError as error:
            print(str(error).splitlines()[0])
assert "opforge" not in sys.modules
"""
)
CHANGED_TORCH = """
import torch
del torch._C._dispatch_get_computed_kernel_for_dispatch_key
import shipped_ops
x = torch.ones(2, device="meta")
print(shipped_ops.add(x, x).shape)
torch.vmap(shipped_ops.add)(x.expand(3, 2), x.expand(3, 2))
"""
CALL_JAX = (
    STANDIN
    + """
import numpy as np
import shipped_ops.jax as ops
ops.opforge_host_memory(True)
x, y = np.arange(6, dtype="f").reshape(2, 3), np.ones((2, 3), dtype="f")
print(ops.add(x, y).tolist(), [launch.function for launch in standin.launches])
assert not {"opforge", "triton"} & set(sys.modules)
"""
)
CALL_TVM_FFI = (
    STANDIN
    + """
import numpy as np
import shipped_ops
import tvm_ffi
ops = tvm_ffi.load_module(shipped_ops.get_library())
ops.opforge_host_memory(True)
x, out = np.arange(6, dtype="f").reshape(2, 3), np.zeros((2, 3), dtype="f")
ops.add(x, x, out)
print(out.tolist(), [launch.function for launch in standin.launches])
"""
)


def run(
    code, *folders, blocked="opforge,triton", program=sys.executable, arguments=(), **variables
):
    """In a process that has these folders, no opforge, no Triton and no compiler."""
    places = [*folders, ROOT / "tests"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    given = {"PATH": "/nowhere", "PYTHONPATH": os.pathsep.join(map(str, places))} | variables
    return subprocess.run(
        [program, "-c", HEAD + code, blocked, str(build_standin()), *map(str, arguments)],
        env=kept | given, capture_output=True, text=True, check=False,
    )  # fmt: skip
