"""Operators of rows, and gemm: built for the stand-in drivers, and traced."""

import json

import pytest

from support.ops.operators import build, count_passed, run_calls
from support.processes import ROOT, run_python

NAMES = ("silu", "silu_and_mul", "gelu_and_mul", "softmax", "rms_norm", "layer_norm")
OPS = (*NAMES, *(f"{name}_backward" for name in NAMES))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    wanted = [f"{name}:fp32" for name in (*OPS, "gemm")]
    return build(tmp_path_factory.mktemp("rows"), *wanted)


@pytest.mark.parametrize(
    ("file", "least"), [("calls_rows.py", 400), ("calls_rows_modes.py", 80), ("calls_gemm.py", 35)]
)
def test_every_call_gives_what_torch_gives(built, file, least):
    assert count_passed(run_calls(built, file)) >= least


def test_native_calls_on_amd_give_the_same(built):
    said = run_calls(built, "calls_rows.py", "calls_gemm.py", vendor="amd")
    assert count_passed(said) >= 200


TRACED = """
import json

import torch

import opforge
from support.launching import graph_of, kernel_names
from opforge.native.commands import operator_tree

found = operator_tree.load(ROOT + "/ops")
ops = {opforge.info(op).name.partition("::")[2]: op for _, op in found.operators}
told = {}
x, half, weight = torch.empty(8, 64), torch.empty(8, 32), torch.empty(64)
places = torch.zeros(8, dtype=torch.int64)
given = {
    "silu": (x,), "silu_backward": (x, x), "softmax": (x,), "softmax_backward": (x, x),
    "silu_and_mul": (x,), "silu_and_mul_backward": (half, x), "rms_norm": (x, weight),
    "rms_norm_backward": (x, x, weight), "layer_norm": (x, weight, weight),
    "layer_norm_backward": (x, x, weight), "gelu_and_mul": (x,), "gelu_and_mul_backward": (half, x),
    "gemm": (x, x, None, 1.0, 1.0, False, True),
    "embedding": (x, places), "embedding_backward": (x, places, 9), "quantize_rows": (x,),
    "quantize_blocks": (x, torch.float8_e4m3fn), "cross_entropy": (x, places),
    "cross_entropy_backward": (x[:, 0], x, places), "cross_entropy_in_place": (x, places),
    "topk_gating": (x, 4),
}
for name, arguments in given.items():
    graph = graph_of(ops[name], *arguments)
    told[name] = [opforge.info(ops[name]).mode, *kernel_names(graph)]
print(json.dumps(told))
"""


def test_the_compiler_sees_the_kernels_of_every_op():
    told = json.loads(run_python(f"ROOT = {str(ROOT)!r}\n{TRACED}"))
    backward = {f"{name}_backward": [f"{name}_backward_kernel"] for name in NAMES}
    for name in ("rms_norm", "layer_norm"):
        backward[f"{name}_backward"].append("weight_sum_kernel")
    expected = {name: [f"{name}_kernel"] for name in NAMES} | backward
    expected |= {
        "embedding": ["embedding_kernel"],
        "embedding_backward": [
            "count_kernel", "starts_kernel", "list_kernel", "order_kernel",
            "embedding_backward_kernel",
        ],
        "cross_entropy": ["cross_entropy_kernel"],
        "cross_entropy_backward": ["cross_entropy_kernel"],
        "cross_entropy_in_place": ["target_count_kernel", "cross_entropy_kernel"],
        "quantize_rows": ["quantize_rows_kernel"],
        "quantize_blocks": ["quantize_blocks_kernel"],
        "topk_gating": ["topk_gating_kernel"],
    }  # fmt: skip
    transparent = {name: ["triton_op", *kernels] for name, kernels in expected.items()}
    # The compiler does not take Gluon kernels, which gemm has for sm_90.
    assert told == {**transparent, "gemm": ["custom_op"]}
