"""Names for ops that tests register, their removal afterwards, and a cache for the run."""

import contextlib
import itertools
import os

import pytest

import opforge
from opforge.errors import NotAnOp

numbers = itertools.count()

# The workers use every core already: pools of threads and compilers in each of their children
# cost 9% more CPU time.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser):
    parser.addoption("--accept", action="store_true", help="write the golden files anew")


# Files that take longest go first, so that all workers end at about the same time.
LONG = (
    "tests/docs/", "tests/ops/", "tests/native/test_end_to_end", "tests/aoti_package/",
    "tests/loading/", "tests/check/test_examples", "tests/native/test_template_dispatch",
    "tests/native/test_cmake_packages", "tests/test_examples",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Compiled kernels go to one cache of this run, for all its workers and their children."""
    before = os.environ.get("OPFORGE_CACHE_DIR")
    run = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        run = run.parent
    os.environ["OPFORGE_CACHE_DIR"] = str(run / "opforge-cache")
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
