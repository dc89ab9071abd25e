"""The library `configs`, which another process has built, and the stand-in driver."""

import json
from pathlib import Path

import pytest

from support.native.calling import BUILT
from support.standin.driver import load_standin
from support.standin.interpreter import Interpreter


@pytest.fixture
def dist():
    return BUILT / "configs"


@pytest.fixture
def standin(dist):
    """Which interprets the library's kernels."""
    made = load_standin()
    made.reset()
    made.execute = Interpreter(json.loads(Path(dist, "share/configs/manifest.json").read_text()))
    yield made
    assert not made.errors, made.errors[0]
    assert made.launches
