"""Operators of rows, and gemm: built for the stand-in drivers, and traced."""

import pytest

from support.ops.operators import build, count_passed, run_calls

NAMES = ("silu", "silu_and_mul", "gelu_and_mul", "softmax", "rms_norm", "layer_norm")
OPS = (*NAMES, *(f"{name}_backward" for name in NAMES))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    wanted = [f"{name}:fp32" for name in (*OPS, "gemm")]
    return build(tmp_path_factory.mktemp("rows"), *wanted)


@pytest.mark.parametrize(
    ("file", "least"), [("calls_rows.py", 400), ("calls_rows_modes.py", 80), ("calls_gemm.py", 34)]
)
def test_every_call_gives_what_torch_gives(built, file, least):
    assert count_passed(run_calls(built, file)) >= least


def test_native_calls_on_amd_give_the_same(built):
    said = run_calls(built, "calls_rows.py", "calls_gemm.py", vendor="amd")
    assert count_passed(said) >= 200
