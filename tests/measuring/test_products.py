"""`opforge tune` of ops that multiply matrices with torch.

Kernels run through Triton's interpreter in a process of its own, and a clock of the test decides
which configuration is the fastest.
"""

import json

import pytest

from opforge.native.device.gemm import FULL_TUNER, HALF_TUNER
from support.processes import run_python

SCRIPT = """
import torch
from opforge.measuring.measure import tune
from opforge.native.device.gemm import HALF_TUNER
from support import product_ops, tuned_ops

tried = []
def _bench(self, *args, config, **meta):
    tried.append(config.kwargs)
    wanted = 16 if self.nargs["m"] < 20 else 64
    us = abs(config.kwargs["BLOCK_M"] - wanted) + config.kwargs["BLOCK_N"] / 1000
    return [us] * 3
type(HALF_TUNER)._bench = _bench

done = tune(
    [{ops}, tuned_ops.copy],
    {path!r}, sizes={sizes!r}, arch="sm_90", clock=lambda *_, **__: None,
)
print(done.measured, done.known, len(tried), "; ".join(done.notes))
"""


def measured(path, ops, sizes):
    script = SCRIPT.format(path=str(path), ops=f"product_ops.{ops}", sizes=sizes)
    return run_python(script, TRITON_INTERPRET="1").splitlines()[-1]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("tuning") / "tuning.json"
    # Two dtypes and two sizes.
    said = measured(path, "gated", {"m": [3, 40], "n": [5], "k": [8]})
    assert said.startswith("4 0 ")
    assert int(said.split()[2]) >= 2 * (len(HALF_TUNER.configs) + len(FULL_TUNER.configs))
    assert said.endswith(" tuned_ops::copy has no autotuned kernel")
    return path


def test_every_product_has_a_row(path):
    blocks = json.loads(path.read_text())["kernels"]
    assert [(b["kernel"], b["dtypes"], b["key"]) for b in blocks] == [
        ("gemm_kernel", [dtype] * 4, ["m", "n", "k", "A_COLUMNS", "B_COLUMNS"])
        for dtype in ("float16", "float32")
    ]
    for block in blocks:
        assert [(r["at"], r["config"]["BLOCK_M"]) for r in block["rows"]] == [
            ([3, 5, 8, False, True], 16), ([40, 5, 8, False, True], 64),
        ]  # fmt: skip


def test_products_compute_what_torch_does_while_they_are_measured(tmp_path):
    said = measured(tmp_path / "t.json", "all_products", {"b": [2], "m": [3], "n": [5], "k": [8]})
    # Of 3 rows: plain, and in linear, whose columns are dense; of 6, all of a stack; and of 2 in
    # a nested op.
    assert said.startswith("4 0 ")
