"""A library on a GPU, called by tvm-ffi and by JAX."""

import importlib.util
import subprocess
import sys

import pytest
import torch

from opforge import native
from support.gpu.arch import arch_name
from support.native import kinds
from support.processes import ROOT, environment

HAS = {name: importlib.util.find_spec(name) is not None for name in ("jax", "tvm_ffi")}


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frameworks")
    ops = [kinds.swish, kinds.scale_]
    native.build(ops, folder, archs=[arch_name()], tvm_ffi=True, jax=True)
    return folder


@pytest.fixture
def ops(dist):
    if not HAS["tvm_ffi"]:
        pytest.skip("apache-tvm-ffi is not installed")
    tvm_ffi = importlib.import_module("tvm_ffi")
    return tvm_ffi.load_module(dist / "lib" / "libkinds.so")


def test_tvm_ffi_calls_with_torchs_tensors_on_torchs_stream(ops):
    x = torch.randn(1000, device="cuda")
    out = torch.empty_like(x)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.fill_(2.0)
        # On another stream it would not wait for the 2.
        ops.scale_(x, 3.0)
        ops.swish(x, 1.5, out)
    torch.cuda.current_stream().wait_stream(side)
    torch.testing.assert_close(x, torch.full_like(x, 6.0))
    torch.testing.assert_close(out, x * torch.sigmoid(1.5 * x))


def test_tvm_ffi_raises_what_the_library_says(ops):
    x = torch.randn(8, device="cuda")
    with pytest.raises(ValueError, match=r"^kinds_swish: x: type fp64, expected fp32"):
        ops.swish(x.double(), 1.5, x)
    with pytest.raises(ValueError, match=r"^kinds_swish: x: is on the CPU; the library runs on"):
        ops.swish(x.cpu(), 1.5, x)


JAX = """
import sys
import jax, jax.numpy as jnp, numpy as np
import kinds.jax as ops

assert jax.default_backend() == "gpu", jax.devices()
x = jax.random.normal(jax.random.key(0), (4, 1000))
reference = lambda x, beta=1.5: x * jax.nn.sigmoid(beta * x)
close = lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
swish = jax.jit(lambda x: ops.swish(x, 1.5))
close(swish(x[0]), reference(x[0]))
close(ops.swish(x[0] + 1, beta=0.5), reference(x[0] + 1, 0.5))
close(jax.jit(jax.vmap(swish))(x), reference(x))
weighted = lambda f: lambda x: (f(x) * jnp.arange(1000)).sum()
close(jax.jit(jax.grad(weighted(swish)))(x[0]), jax.grad(weighted(reference))(x[0]))
close(jax.vmap(jax.grad(weighted(swish)))(x), jax.vmap(jax.grad(weighted(reference)))(x))
# A chain in one program, between kernels of XLA.
close(jax.jit(lambda x: swish(jnp.exp(swish(x * 2))) - 1)(x[0]),
      reference(jnp.exp(reference(x[0] * 2))) - 1)
before = np.asarray(x[1])
y = x[1]
close(ops.scale_(y, -2.0), before * -2)
close(y, before)
try:
    jax.block_until_ready(ops.swish(jax.device_put(x[0], jax.devices("cpu")[0]), 1.5))
except Exception as error:
    print(str(error).splitlines()[0])
try:
    ops.swish(x[0].astype(jnp.int32), 1.5)
except ValueError as error:
    print(error)
"""


@pytest.mark.skipif(not HAS["jax"], reason="JAX is not installed")
def test_jax_calls_with_jit_vmap_and_gradients(dist):
    # It would reserve most of the GPU's memory.
    variables = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_PLATFORMS": "cuda,cpu"}
    done = subprocess.run(
        [sys.executable, "-c", JAX], env=environment(dist / "python", **variables), cwd=ROOT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    cpu, dtype = done.stdout.splitlines()
    assert "kinds_swish: its arrays are on the CPU; the library runs on CUDA" in cpu
    assert dtype == "kinds_swish: x: type i32, expected fp32"
