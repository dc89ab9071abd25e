"""add and mul of the operator tree: built for the stand-in driver, called by `calls_*.py`."""

import re

import pytest

from support.ops.operators import build, run_calls, run_traces


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elementwise")
    # The dtypes of the grid of strided outputs are built for its ranks only.
    grid = "add:fp16,i16,i32,i64,u16,u32@0,1,2,3"
    return build(folder, "add:bf16,fp32,i8,u64", grid, "mul:fp32,u64")


def test_every_call_gives_what_torch_and_numpy_give(built):
    said = run_calls(built, "calls_elementwise.py", "calls_strided_outputs.py")
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None, said
    # In 9 layouts at least 12 dtypes in eager, and 4 natively; 11 rows of the grid in 9 dtypes.
    assert int(passed[1]) > 9 * (12 + 4) + 9 * 11
    assert "skipped" not in said, said


def test_every_row_of_the_check_passes(built):
    assert "skipped" not in run_calls(built, "calls_checked.py")


def test_compilers_see_the_launches():
    assert "skipped" not in run_traces("traces_elementwise.py", "traces_checked.py")
