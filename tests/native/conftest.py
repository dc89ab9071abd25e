"""Ops under unused names; a cache, workers and a driver; hand-made libraries."""

import functools
import tempfile
from pathlib import Path

import pytest

import opforge
from opforge.native.ir.program import Library
from opforge.native.kernels import workers
from opforge.native.kernels.image_cache import Cache
from support.native import hand_made
from support.native.compile_workers import lasting
from support.standin.driver import AMD, NVIDIA, load_standin
from support.standin.library import NativeLibrary, OpforgeTensor, build


@pytest.fixture
def make_op(op_name):
    """A function and options -> its op under an unused name."""

    def make(fn, **options):
        return opforge.op(fn, name=op_name(), **options)

    return make


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


@pytest.fixture(scope="session")
def pool():
    """A worker that is started once: it imports Triton."""
    with workers.start_pool(1) as executor:
        yield executor


@pytest.fixture(scope="module")
def lasting_workers():
    """The same for builds that are not given one."""
    with lasting():
        yield


@functools.cache
def built_once(program: Library) -> NativeLibrary:
    """Builds each program once per test run."""
    return build(program, Path(tempfile.mkdtemp(prefix="opforge-native-")))


@pytest.fixture(params=[NVIDIA, AMD], ids=lambda vendor: vendor.name)
def vendor(request):
    """Whose stand-in the test runs on."""
    return request.param


@pytest.fixture
def standin(vendor):
    """The driver, with one device and nothing recorded."""
    found = load_standin(vendor)
    found.reset()
    OpforgeTensor.gpu = vendor.device_type
    yield found
    OpforgeTensor.gpu = NVIDIA.device_type
    found.reset()
    assert found.last_error == 0
    assert found.depth == 0


@pytest.fixture
def library(standin):
    """The library of all hand-made programs, for both vendors; nothing survives the test."""
    built = built_once(hand_made.for_both(hand_made.every_op()))
    yield built
    assert standin.errors == []
    close(built, standin)


@pytest.fixture
def make(standin):
    """Builds a program's library for both vendors; nothing of it survives the test."""
    made = []

    def build_one(program, *, for_both=True):
        made.append(built_once(hand_made.for_both(program) if for_both else program))
        return made[-1]

    yield build_one
    for built in made:
        close(built, standin)


@pytest.fixture
def make_own(make, vendor):
    """Builds a program's library for the vendor alone: memory of the host is then its GPU's."""
    return lambda program: make(
        hand_made.for_amd(program) if vendor is AMD else program, for_both=False
    )


def close(built: NativeLibrary, standin) -> None:
    standin.fail(0)
    for device in (0, 1):
        built.unload(device)
    assert standin.alive == {"modules": 0, "allocations": 0, "contexts": 0}
