"""A module of JAX for a library of both vendors, in a process with both drivers.

tests/native/codegen/test_jax_ffi.py runs this file, as it does calls_jax.py. JAX has the CPU alone
here, so what it answers about GPUs is replaced.
"""

import importlib
import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from support.standin.driver import AMD, NVIDIA, load_standin

FOLDER = Path(os.environ.get("OPFORGE_TEST_BUILT", "/nonexistent"))
X = jnp.zeros(3)
SIZES = {"cuda": 3, "rocm": 6}


@pytest.fixture(scope="session")
def ops():
    for vendor in (NVIDIA, AMD):
        load_standin(vendor).reset()
    sys.path.insert(0, str(FOLDER / "python"))
    return importlib.import_module("demo.jax")


@pytest.fixture
def jax_has(monkeypatch):
    """Lets JAX have some GPU platforms."""

    def has(*platforms):
        def devices(platform):
            if platform not in platforms:
                raise RuntimeError(f"Unknown backend {platform}")
            return [f"{platform}:0"]

        monkeypatch.setattr(jax, "devices", devices)
        # Of traces, which are kept by function.
        jax.clear_caches()

    return has


@pytest.mark.parametrize("platform", SIZES)
def test_shapes_are_those_of_the_platform_that_jax_has(ops, jax_has, platform):
    jax_has(platform)
    assert jax.eval_shape(ops.wider, X).shape == (SIZES[platform],)
    assert jax.eval_shape(jax.jit(ops.wider), X).shape == (SIZES[platform],)


@pytest.mark.parametrize("platforms", [(), ("cuda", "rocm")])
def test_shapes_that_differ_are_refused_where_jax_does_not_tell_the_platform(
    ops, jax_has, platforms
):
    jax_has(*platforms)
    assert jax.eval_shape(ops.alike, X).shape == (3,)
    said = r"demo_wider: .*\n  on cuda: float32 \[3\]\n  on rocm: float32 \[6\]\n  fix: "
    with pytest.raises(ValueError, match=said):
        jax.eval_shape(ops.wider, X)
