"""Workers that compile for all tests of a module."""

import pytest

from support.native.compile_workers import lasting


@pytest.fixture(scope="module")
def lasting_workers():
    """One for builds that are not given an executor."""
    with lasting():
        yield
