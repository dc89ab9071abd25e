"""The hash of an op's source: what changes it, and what does not."""

import importlib.util
import itertools
import subprocess

import pytest

from opforge.registration.fingerprint import op_fingerprint
from support.processes import OTHER_SEED, environment, python

SOURCE = """
import triton
import triton.language as tl
FACTOR = 2
SIDE: tl.constexpr = tl.constexpr(16)

@triton.jit
def inner(x):
    return x * 2

@triton.autotune([triton.Config({"BLOCK": 32})], key=["n"])
@triton.jit
def kernel(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr, inner(tl.load(x_ptr)) + SIDE)

def helper(n):
    return n + FACTOR

def op(x):
    kernel[(helper(1),)](x, x.numel())
    return x
"""
numbers = itertools.count()


@pytest.fixture
def hashed(tmp_path):
    def of(source):
        file = tmp_path / f"hashed{next(numbers)}.py"
        file.write_text(source)
        spec = importlib.util.spec_from_file_location(file.stem, file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return op_fingerprint(module.op)

    return of


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return x\n", "return x + 1\n"),
        ("n + FACTOR", "n - FACTOR"),
        ("FACTOR = 2", "FACTOR = 3"),
        ("SIDE: tl.constexpr = tl.constexpr(16)", "SIDE: tl.constexpr = tl.constexpr(8)"),
        ("return x * 2", "return x * 3"),
        ('"BLOCK": 32', '"BLOCK": 64'),
        ("tl.load(x_ptr))", "tl.load(x_ptr + 1))"),
    ],
)
def test_it_changes_with_all_that_is_called(hashed, before, after):
    assert before in SOURCE
    assert hashed(SOURCE) != hashed(SOURCE.replace(before, after))


def test_it_does_not_change_with_what_stands_around(hashed):
    moved = SOURCE.replace("FACTOR = 2", "# Moved down.\n\nFACTOR = 2\nUNUSED = 3")
    assert hashed(SOURCE) == hashed(moved)


def test_it_is_the_same_in_every_process_and_under_the_interpreter(hashed, tmp_path):
    here = hashed(SOURCE)
    (tmp_path / "hashed_ops.py").write_text(SOURCE)
    code = (
        "import hashed_ops; from opforge.registration.fingerprint import op_fingerprint; "
        "print(op_fingerprint(hashed_ops.op))"
    )
    elsewhere = subprocess.run(
        [python(), "-c", code], text=True, capture_output=True, check=True,
        env=environment(tmp_path, TRITON_INTERPRET="1", **OTHER_SEED),
    )  # fmt: skip
    assert elsewhere.stdout == f"{here}\n"
