"""The operators of ops/: built for the stand-in drivers, called by `calls_*.py`, and traced."""

import functools

import pytest

from support.ops.operators import build, count_passed, run_calls, run_traces

ROWS = ("silu", "silu_and_mul", "gelu_and_mul", "softmax", "rms_norm", "layer_norm")
INFERENCE = (
    "embedding", "embedding_backward", "cross_entropy", "cross_entropy_backward",
    "cross_entropy_in_place", "quantize_rows", "quantize_blocks", "topk_gating",
)  # fmt: skip
LIBRARIES = {
    # The dtypes of the grid of strided outputs are built for its ranks only.
    "elementwise": ("add:bf16,fp32,i8,u64", "add:fp16,i16,i32,i64,u16,u32@0,1,2,3", "mul:fp32,u64"),
    "rows": [f"{name}:fp32" for op in ROWS for name in (op, f"{op}_backward")] + ["gemm:fp32"],
    "rotary": ["rotary:fp32"],
    # Packed sequences have the same kernels.
    "attention": [
        f"{name}:fp16" for name in ("attention", "attention_backward", "paged_attention")
    ],
    "inference": [f"{name}:fp32,i64" for name in INFERENCE],
}
CALLS_OF_INFERENCE = "embedding cross_entropy quantize topk_gating"
# A library, the files of calls, whose stand-in, and how many calls there are at least.
CALLS = [
    # In 9 layouts at least 12 dtypes in eager, and 4 natively; 11 rows of the grid in 9 dtypes.
    ("elementwise", "elementwise strided_outputs", "nvidia", 9 * (12 + 4) + 9 * 11),
    ("elementwise", "elementwise", "amd", 40),
    ("rows", "rows", "nvidia", 400),
    ("rows", "rows_modes", "nvidia", 80),
    ("rows", "gemm", "nvidia", 34),
    ("rows", "rows gemm", "amd", 200),
    ("rotary", "rotary", "nvidia", 70),
    ("rotary", "rotary", "amd", 5),
    ("attention", "attention", "nvidia", 18),
    ("attention", "attention", "amd", 6),
    ("inference", CALLS_OF_INFERENCE, "nvidia", 95),
    ("inference", CALLS_OF_INFERENCE, "amd", 50),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A library by its name, built once."""
    return functools.cache(lambda name: build(tmp_path_factory.mktemp(name), *LIBRARIES[name]))


@pytest.mark.parametrize(("library", "files", "vendor", "least"), CALLS)
def test_every_call_gives_what_torch_gives(built, library, files, vendor, least):
    files = [f"calls_{name}.py" for name in files.split()]
    assert count_passed(run_calls(built(library), *files, vendor=vendor)) >= least


def test_every_row_of_the_check_passes(built):
    assert "skipped" not in run_calls(built("elementwise"), "calls_checked.py")


def test_compilers_see_the_launches():
    assert "skipped" not in run_traces("traces_elementwise.py", "traces_checked.py")
