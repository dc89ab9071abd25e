"""Libraries that another process has built, called here on the stand-in or on a GPU.

`calls_*.py` are run by tests/native/test_end_to_end.py with TRITON_INTERPRET=1, and by
tests/gpu/test_native.py on a GPU.
"""

import pytest

from support.native.calling import DEVICE, VENDOR, Caller
from support.standin.driver import AMD, load_standin
from support.standin.library import OpforgeTensor
from support.standin.rocm import pretend_rocm


@pytest.fixture(scope="session")
def standin():
    if DEVICE == "cuda":
        return None
    OpforgeTensor.gpu = VENDOR.device_type
    if VENDOR is AMD:
        pretend_rocm()
    return load_standin(VENDOR)


@pytest.fixture(scope="session")
def _ops(standin):
    return Caller("ops", standin)


@pytest.fixture(scope="session")
def _kinds(standin):
    return Caller("kinds", standin)


@pytest.fixture(scope="session")
def _large(standin):
    return Caller("large", standin)


@pytest.fixture
def ops(_ops):
    _ops.begin()
    yield _ops
    _ops.end()


@pytest.fixture
def kinds(_kinds):
    _kinds.begin()
    yield _kinds
    _kinds.end()


@pytest.fixture
def large(_large):
    _large.begin()
    yield _large
    _large.end()
