"""Names for the ops that tests register, and their removal afterwards."""

import contextlib
import itertools

import pytest

import opforge
from opforge.errors import NotAnOp

numbers = itertools.count()


def pytest_addoption(parser):
    parser.addoption("--accept", action="store_true", help="write the golden files anew")


@pytest.fixture
def op_name():
    """A callable that gives a name nobody has used; its op is unregistered after the test."""
    given = []

    def name() -> str:
        given.append(f"opforge_tests::op{next(numbers)}")
        return given[-1]

    yield name
    for used in given:
        with contextlib.suppress(NotAnOp):
            opforge.unregister(used)
