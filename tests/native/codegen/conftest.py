"""A driver for each test, and libraries of hand-made programs."""

import functools
import tempfile
from pathlib import Path

import hand_made
import pytest
from standin import NativeLibrary, build, load_standin

from opforge.native.ir.program import Library


@functools.cache
def built_once(program: Library) -> NativeLibrary:
    """The same program is built once in a run of the tests."""
    return build(program, Path(tempfile.mkdtemp(prefix="opforge-native-")))


@pytest.fixture
def standin():
    """The driver, with one device and nothing recorded."""
    found = load_standin()
    found.reset()
    yield found
    found.reset()
    assert found.depth == 0


@pytest.fixture
def library(standin):
    """The library of all hand-made programs; nothing of it is left alive after the test."""
    built = built_once(hand_made.every_op())
    yield built
    assert standin.errors == []
    close(built, standin)


@pytest.fixture
def make(standin):
    """Builds a program's library, of which nothing is left alive after the test."""
    made = []

    def build_one(program):
        made.append(built_once(program))
        return made[-1]

    yield build_one
    for built in made:
        close(built, standin)


def close(built: NativeLibrary, standin) -> None:
    standin.fail(0)
    for device in (0, 1):
        built.unload(device)
    assert standin.alive == {"modules": 0, "allocations": 0, "contexts": 0}
