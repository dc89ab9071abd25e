"""add, mul and rotary through opforge.check."""

import importlib

import pytest

import opforge
from support.ops.operators import ON_GPU, laid_out, numbers

# Their library is built and called by other tests; compiling C++ for the CPU takes long.
SKIPPED = ["native"] if ON_GPU else ["native", "package", "compile", "compile dynamic"]


def reference(name):
    return importlib.import_module(f"ops.{name}.op").reference


def turned(q, k, *rest):
    """In place, as the operator is."""
    for tensor, result in zip((q, k), reference("rotary")(q, k, *rest), strict=True):
        tensor.copy_(result)


@pytest.mark.parametrize("name", ["add", "mul"])
def test_add_and_mul(tree, name):
    x, y = laid_out("transposed", (5, 33)), numbers((33,), seed=1)
    # A package takes more than a minute, and mul is add with another sign.
    skip = [*SKIPPED, "package"] if name == "mul" else SKIPPED
    report = opforge.check(tree[name], x, y, reference=reference(name), skip=skip)
    assert report.ok, report


def test_rotary(tree):
    q, k = numbers((3, 4, 64)), numbers((3, 2, 64), seed=1)
    tables = numbers((3, 32)), numbers((3, 32), seed=1)
    report = opforge.check(tree["rotary"], q, k, *tables, reference=turned, skip=SKIPPED)
    assert report.ok, report
