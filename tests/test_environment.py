"""The table of environment variables is all that opforge reads."""

import re
from pathlib import Path

import pytest

import opforge
from opforge import environment

SOURCE = Path(opforge.__file__).parent


def test_only_the_table_reads_a_variable():
    readers = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if re.search(r"environ\.get\(|getenv\(", path.read_text())
    }
    assert readers == {"environment.py"}


def test_the_table_has_every_variable():
    records = {v for v in vars(environment).values() if isinstance(v, environment.Variable)}
    assert set(environment.VARIABLES) == records


@pytest.mark.parametrize(
    ("value", "on"),
    [(None, False), ("", False), ("0", False), ("1", True), ("On", True), ("True", True)],
)
def test_a_boolean_is_read_as_triton_reads_it(monkeypatch, value, on):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if value is not None:
        monkeypatch.setenv("TRITON_INTERPRET", value)
    assert environment.TRITON_INTERPRET.is_on() is on
