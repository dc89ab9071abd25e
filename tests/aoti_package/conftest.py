"""Packages that take seconds to build, built once for all tests."""

import contextlib
import sys
import types

import pytest
import torch

import opforge
from opforge.aoti_package import verify
from support import packaged_ops
from support.processes import WITHOUT_OPFORGE, python


@contextlib.contextmanager
def _torch_imported():
    """Processes that verify a package start with torch imported, which saves each of them 3 s."""
    program = types.SimpleNamespace(**vars(sys) | {"executable": python()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "sys", program)
        for name, value in WITHOUT_OPFORGE.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(autouse=True)
def _verified_in_a_fork():
    with _torch_imported():
        yield


@pytest.fixture(scope="session")
def model():
    torch.manual_seed(0)
    return packaged_ops.Model().eval()


@pytest.fixture(scope="session")
def arguments():
    return (torch.randn(4, 16),), {"bias": torch.randn(8)}


@pytest.fixture(scope="session")
def built(model, arguments, tmp_path_factory):
    """A model with several ops and a mutated buffer, for any batch from 1 to 64."""
    args, kwargs = arguments
    with _torch_imported():
        return opforge.package(
            model,
            args,
            tmp_path_factory.mktemp("packages") / "model.pt2",
            kwargs=kwargs,
            dynamic={"x": {0: ("batch", 1, 64)}},
            also=[(torch.randn(23, 16),)],
        )


@pytest.fixture(scope="session")
def built_op(tmp_path_factory):
    """An op on its own that takes a record and writes into it."""
    state = packaged_ops.Scale(torch.randn(6), eps=0.5)
    path = tmp_path_factory.mktemp("packages") / "step.pt2"
    with _torch_imported():
        return opforge.package(packaged_ops.step, (state,), path, kwargs={"grad": torch.randn(6)})
