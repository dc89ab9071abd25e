"""A library loaded before there is a registry: quick, and otherwise the same."""

import functools
import json
import subprocess

import pytest

from support.loading import first_calls
from support.processes import WITHOUT_OPFORGE, environment, python

# Everything that an operator's first call waits for.
MODULES = {
    "opforge", "opforge._compat", "opforge._compat.dispatcher", "opforge._compat.transforms",
    "opforge._lazy", "opforge.loading",
    "opforge.loading.adapter", "opforge.loading.library",
    "opforge.native",
    "opforge.native.ir", "opforge.native.ir.abi", "opforge.native.library",
    "opforge.native.library.manifest_reader", "opforge.native.library.shared_library",
    "opforge.native.artifacts", "opforge.native.artifacts.hashes",
    "opforge.deferred", "opforge.records", "opforge.locks",
    "opforge.versions",
}  # fmt: skip


@pytest.fixture
def found(dist):
    return outcomes(dist)


@functools.cache
def outcomes(folder):
    """By first action: its result in two steps, and in one."""
    done = subprocess.run(
        [python(), "-m", first_calls.__name__, str(folder)],
        env=environment(**WITHOUT_OPFORGE), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", [*first_calls.AFTER_LOADING, *first_calls.ALONE])
def test_loading_in_two_steps_gives_the_same_as_in_one(found, name):
    quick, ever = found[name]
    assert "Traceback" not in str(ever)
    assert quick == ever


def test_the_first_call_imports_little(found):
    assert set(found["imported_modules"]) == MODULES


def test_interrupted_deferred_work_is_done_at_the_next_call(found):
    expected = (2 * first_calls.X).tolist()
    assert found["interrupted"] == [[expected], "custom_op"]


def test_a_library_that_cannot_be_registered_is_removed_entirely(found):
    said, gone, again = found["refused_later"]
    assert "special__grad" in said
    assert gone == [False] * 4
    assert again == (2 * first_calls.X).tolist()


def test_first_calls_compute_what_they_should(found):
    expected = (2 * first_calls.X).tolist()
    assert found["inference_mode"] == [expected, expected]
    assert found["vmapped"] == [[expected], [expected]]
    quick, _ = found["requires_grad"]
    assert quick[:2] == [expected, True]
    assert "MissingBackward" in quick[2]
    if "fake_of_somebody_else" in found:
        assert found["autograd_of_somebody_else"][0] == [[7.0] * 3] * 2
        assert found["fake_of_somebody_else"][0] == [[7], [7]]
