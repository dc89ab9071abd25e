"""The library's module for JAX, in a process of its own, because JAX starts threads."""

import importlib
import sys

import jax
import numpy as np
import pytest
import torch

from support.native.config_calls import compare


@pytest.fixture
def ops(dist, standin):
    sys.path.insert(0, str(dist / "python"))
    module = importlib.import_module("configs.jax")
    module.opforge_host_memory(True)
    yield module
    module.opforge_host_memory(False)


def test_custom_vjps_take_the_backward_that_the_library_carries(ops):
    def by_vjp(name, grad, *flat):
        at = [i for i, value in enumerate(flat) if isinstance(value, torch.Tensor)]

        def run(*arrays):
            passed = list(flat)
            for i, array in zip(at, arrays, strict=True):
                passed[i] = array
            out = getattr(ops, name)(*passed)
            return out.value if isinstance(out, tuple) else out

        out, back = jax.vjp(run, *(jax.numpy.asarray(flat[i].numpy()) for i in at))
        grads = back(jax.numpy.asarray(grad.numpy()))
        return torch.from_numpy(np.array(out)), [torch.from_numpy(np.array(g)) for g in grads]

    compare(by_vjp)
