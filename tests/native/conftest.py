"""Ops under names nobody has used; a cache and workers of the tests' own."""

import pytest

import opforge
from opforge.native.kernels import workers
from opforge.native.kernels.image_cache import Cache


@pytest.fixture
def make_op(op_name):
    """A function, and options, -> its op under a name nobody has used."""

    def make(fn, **options):
        return opforge.op(fn, name=op_name(), **options)

    return make


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


@pytest.fixture(scope="session")
def pool():
    """Workers that are started once: each imports Triton."""
    with workers.start_pool(2) as executor:
        yield executor
