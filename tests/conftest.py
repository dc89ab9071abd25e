"""Names for ops that tests register, their removal afterwards, and a cache for the run."""

import contextlib
import itertools
import os

import pytest

import opforge
from opforge.errors import NotAnOp

numbers = itertools.count()


def pytest_addoption(parser):
    parser.addoption("--accept", action="store_true", help="write the golden files anew")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Compiled kernels go to a cache of this run, in child processes too."""
    before = os.environ.get("OPFORGE_CACHE_DIR")
    os.environ["OPFORGE_CACHE_DIR"] = str(tmp_path_factory.mktemp("opforge-cache"))
    yield
    del os.environ["OPFORGE_CACHE_DIR"]
    if before is not None:
        os.environ["OPFORGE_CACHE_DIR"] = before


@pytest.fixture
def op_name():
    """A callable that returns an unused name; its op is unregistered after the test."""
    given = []

    def name() -> str:
        given.append(f"opforge_tests::op{next(numbers)}")
        return given[-1]

    yield name
    for used in given:
        with contextlib.suppress(NotAnOp):
            opforge.unregister(used)
