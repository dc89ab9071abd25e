"""The extension on the stand-in driver."""

import pytest

from support.serving import Serving, extension
from support.standin.driver import load_standin


@pytest.fixture
def standin():
    """The driver, with one device and nothing recorded."""
    found = load_standin()
    found.reset()
    yield found
    found.reset()
    assert found.depth == 0


@pytest.fixture
def serving(standin, tmp_path):
    """Nothing of it stays loaded after the test."""
    made = Serving(extension(), standin, tmp_path)
    yield made
    assert standin.errors == []
    standin.fail(0)
    made.module.unload()
    assert standin.alive == {"modules": 0, "allocations": 0, "contexts": 0}
