"""Fixtures of `calls_*.py`: the operators of the tree, and their library on the device."""

import pytest

import opforge
from opforge import native
from support.ops.operators import BUILT, MODES, ON_GPU, VENDOR, in_mode
from support.processes import ROOT


@pytest.fixture(scope="session")
def tree():
    """The operators, by name; `ops.add.op` and so on can be imported from then on."""
    from opforge.native.targets import operators  # noqa: PLC0415

    return {opforge.info(op).name.partition("::")[2]: op for op in operators([f"{ROOT}/ops/"])}


@pytest.fixture(scope="session")
def standin():
    if ON_GPU:
        return None
    from support.standin.driver import AMD, NVIDIA, load_standin  # noqa: PLC0415

    return load_standin(AMD if VENDOR == "amd" else NVIDIA)


@pytest.fixture(scope="session")
def _library(standin, tree):
    return native.open(BUILT, host_memory=standin is not None)


@pytest.fixture
def library(_library, standin):
    """The built library; on the CPU its kernels are interpreted, as the stand-in launches them."""
    if standin is None:
        yield _library
        return
    from support.standin.interpreter import Interpreter  # noqa: PLC0415

    standin.reset()
    standin.execute = Interpreter(_library.manifest)
    yield _library
    assert not standin.errors, standin.errors[0]
    _library.unload()
    assert standin.alive == {"modules": 0, "allocations": 0, "contexts": 0}


@pytest.fixture(params=MODES)
def call(request, tree, library):
    """An operator's name and arguments -> its result, in each of the four modes."""

    def made(name, *args, **named):
        return in_mode(request.param, tree[name], getattr(library, name))(*args, **named)

    made.mode = request.param
    return made
