"""add and mul of the operator tree: built for the stand-in drivers, called by `calls_*.py`."""

import pytest

from support.ops.operators import build, count_passed, run_calls, run_traces


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elementwise")
    # The dtypes of the grid of strided outputs are built for its ranks only.
    grid = "add:fp16,i16,i32,i64,u16,u32@0,1,2,3"
    return build(folder, "add:bf16,fp32,i8,u64", grid, "mul:fp32,u64")


def test_every_call_gives_what_torch_and_numpy_give(built):
    said = run_calls(built, "calls_elementwise.py", "calls_strided_outputs.py")
    # In 9 layouts at least 12 dtypes in eager, and 4 natively; 11 rows of the grid in 9 dtypes.
    assert count_passed(said) > 9 * (12 + 4) + 9 * 11


def test_native_calls_on_amd_give_the_same(built):
    assert count_passed(run_calls(built, "calls_elementwise.py", vendor="amd")) >= 40


def test_every_row_of_the_check_passes(built):
    assert "skipped" not in run_calls(built, "calls_checked.py")


def test_compilers_see_the_launches():
    assert "skipped" not in run_traces("traces_elementwise.py", "traces_checked.py")
