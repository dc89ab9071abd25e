"""Ops whose declarations are gone after the test."""

import pytest

import opforge


@pytest.fixture
def make_op(op_name):
    """A function, and options, -> its op under a name nobody has used."""

    def make(fn, **options):
        return opforge.op(fn, name=op_name(), **options)

    return make
